"""Files by name, in a folder or in a tar, so that every layout can be read from either."""
# MERGED DOCS:
# | """What is known about annotated images: boxes, classes, outlines; checked once, read when needed."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8
from numpy.typing import NDArray

from glf.data.decode import decode, quiet
from glf.data.files import tar_members, why_passed_over


@dataclass(frozen=True, kw_only=True)
class AnnotationRoot:
    """A folder, or an uncompressed tar whose files are read where they lie; a folder around everything is taken off."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise ValueError(f"no such file or folder: {self.path}")
        if not self.path.is_dir() and self.path.suffix.lower() != ".tar":
            raise ValueError(f"{self.path} is neither a folder nor a .tar; decompress it first if it is an archive")

    @cached_property
    def files(self) -> dict[str, tuple[int, int] | None]:
        """Every file that is not hidden, parts separated by "/": None in a folder, offset and size in a tar."""
        found = self._listed() if self.path.is_dir() else self._members()
        tops = {name.partition("/")[0] if "/" in name else "" for name in found}
        if not self.path.is_dir() and len(tops) == 1 and tops != {""}:
            return {name.partition("/")[2]: where for name, where in found.items()}
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def below(self, folder: str, ending: str | tuple[str, ...] = "") -> list[str]:
        """The names that start with ``folder`` and end like that, sorted."""
        return sorted(name for name in self.files if name.startswith(folder) and name.lower().endswith(ending))

    def read(self, name: str) -> bytes:
        """The bytes of one file, opened anew each time: any thread or process may read."""
        where = self.files[name]
        if where is None:
            return (self.path / name).read_bytes()
        with self.path.open("rb", buffering=0) as tar:
            tar.seek(where[0])
            return tar.read(where[1])

    def _listed(self) -> dict[str, tuple[int, int] | None]:
        found: dict[str, tuple[int, int] | None] = {}
        seen: set[tuple[int, int]] = set()
        for folder, folders, files in os.walk(self.path, followlinks=True):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:  # a loop of links
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            inside = Path(folder).relative_to(self.path)
            found |= {(inside / name).as_posix(): None for name in files if not name.startswith(".")}
        return found

    def _members(self) -> dict[str, tuple[int, int] | None]:
        found: dict[str, tuple[int, int] | None] = {}
        for member in tar_members(self.path):
            place = PurePosixPath(member.name)
            if why_passed_over(member) is None and not any(part.startswith(".") for part in place.parts):
                found[str(place)] = (member.offset_data, member.size)
        return found


OVER = 1.0  # pixels; boxes that leave the image by no more than this were rounded, and are not worth a word


@dataclass(frozen=True, kw_only=True)
class Object:
    """One annotated object of an image."""

    name: str  # of the object, for messages: "object 2 of Annotations/000005.xml"
    box: tuple[float, float, float, float]  # x0 y0 x1 y1 in pixels, x1 and y1 exclusive
    label: int  # 1 is the first class; 0 is the background
    crowd: bool = False  # COCO: one outline around many
    difficult: bool = False  # VOC
    outline: Any = None  # COCO: polygons, or run lengths

    @property
    def ignored(self) -> bool:
        """Neither learnt from nor counted."""
        return self.crowd or self.difficult


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One annotated image."""

    name: str  # in its place
    height: int
    width: int
    objects: tuple[Object, ...]

    @property
    def boxes(self) -> Float32[np.ndarray, "object 4"]:
        return np.array([one.box for one in self.objects], np.float32).reshape(-1, 4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Annotations:
    """One split of a set of annotated images."""

    place: AnnotationRoot
    classes: tuple[str, ...]
    scenes: Sequence[Scene]
    notes: tuple[str, ...] = ()  # what was clipped or left out

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def objects(self) -> int:
        """How many are learnt from, or counted."""
        return sum(not one.ignored for scene in self.scenes for one in scene.objects)

    @property
    def key(self) -> str:
        """16 hex digits of everything annotated."""
        digest = hashlib.blake2b(repr(self.classes).encode(), digest_size=8)
        for scene in self.scenes:  # one by one: outlines of a large set fill the memory as text
            digest.update(repr(scene).encode())
        return digest.hexdigest()

    def select(self, rows: NDArray[np.int64]) -> "Annotations":
        """Some of the images."""
        return replace(self, scenes=[self.scenes[row] for row in rows])

    def pixels(self, row: int) -> UInt8[np.ndarray, "height width channel"]:
        """One image, decoded, of the annotated size."""
        scene = self.scenes[row]
        try:
            with quiet():
                pixels = decode(self.place.read(scene.name))
        except Exception as error:  # PIL's plugins raise almost any exception on a broken file
            raise ValueError(f"{self.place.path / scene.name} cannot be read as an image ({error})") from error
        if pixels.shape[:2] != (scene.height, scene.width):
            raise ValueError(
                f"{self.place.path / scene.name} has {pixels.shape[1]} x {pixels.shape[0]} pixels, its annotation says"
                f" {scene.width} x {scene.height}: was it resized, or is it rotated by its EXIF orientation?"
            )
        return pixels


@dataclass(kw_only=True)
class CheckedAnnotations:
    """Boxes that were looked at, and what had to be done about them."""

    clipped: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def box(self, name: str, box: Sequence[float], width: int, height: int) -> tuple[float, float, float, float] | None:
        """The part of a box that is inside the image; None when there is none, as of an empty box.

        >>> checked = Checked()
        >>> checked.box("a", (-2, 5, 8, 20), 10, 10), checked.box("b", (4, 4, 4, 9), 10, 10), checked.notes()[0]
        ((0.0, 5.0, 8.0, 10.0), None, 'boxes over the border, clipped: 1, first a')
        """
        x0, y0, x1, y1 = (float(value) for value in box)
        inside = (max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height)))
        if not (inside[0] < inside[2] and inside[1] < inside[3]):
            self.skipped.append(name)
            return None
        if max(abs(a - b) for a, b in zip(inside, (x0, y0, x1, y1), strict=True)) > OVER:
            self.clipped.append(name)
        return inside

    def notes(self) -> tuple[str, ...]:
        """What a person should know, in a line each."""
        kinds = {"over the border, clipped": self.clipped, "empty or outside their image, left out": self.skipped}
        return tuple(f"boxes {what}: {len(names)}, first {names[0]}" for what, names in kinds.items() if names)


def numbers(values: Any, count: int, name: str) -> list[float]:
    """So many finite numbers, or an error that names the object."""
    try:
        found = [float(value) for value in values]
    except (TypeError, ValueError):
        found = []
    if len(found) != count or not np.isfinite(found).all():
        raise ValueError(f"{name} has the box {values!r}, expected {count} numbers")
    return found


def require_files(place: AnnotationRoot, names: Sequence[str], said_by: str) -> None:
    """An error that counts the images that are not there."""
    missing = [name for name in names if name not in place]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(names)} images that {said_by} names are missing in {place.path}:"
            f" the first is {missing[0]}"
        )


def divided(scenes: Sequence[Scene], split: str, seed: int, path: Any) -> list[Scene]:
    """Four fifths of images without splits to train on, the rest to test on: fixed by the seed."""
    if len(scenes) < 2:
        raise ValueError(f"{path} has {len(scenes)} annotated image(s), too few to divide into training and test")
    order = np.random.default_rng(seed).permutation(len(scenes))
    count = max(1, len(scenes) // 5)
    return [scenes[row] for row in sorted(order[:count] if split == "test" else order[count:])]
