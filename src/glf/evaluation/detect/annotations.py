"""Annotated images: boxes, classes and segmentations, checked when read; pixels are decoded on demand."""

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
from glf.data.tar import tar_members, why_unusable

TOLERANCE = 1.0  # pixels; boxes that exceed the image by no more than this were rounded, and are clipped silently

Box = tuple[float, float, float, float]  # x0 y0 x1 y1 in pixels, x1 and y1 exclusive


@dataclass(frozen=True, kw_only=True)
class AnnotationRoot:
    """A folder, or an uncompressed tar that is read without unpacking. A single top folder of a tar is ignored."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise ValueError(f"no such file or folder: {self.path}")
        if not self.path.is_dir() and self.path.suffix.lower() != ".tar":
            raise ValueError(f"{self.path} is neither a folder nor a .tar; decompress it first if it is an archive")

    @cached_property
    def files(self) -> dict[str, tuple[int, int] | None]:
        """All files that are not hidden, with "/" as separator: None in a folder, offset and size in a tar."""
        if self.path.is_dir():
            return self._folder_files()
        found = self._tar_files()
        tops = {name.partition("/")[0] if "/" in name else "" for name in found}
        if len(tops) == 1 and tops != {""}:
            return {name.partition("/")[2]: where for name, where in found.items()}
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def matching(self, prefix: str, suffix: str | tuple[str, ...] = "") -> list[str]:
        """Sorted names of the files with this prefix and suffix."""
        return sorted(name for name in self.files if name.startswith(prefix) and name.lower().endswith(suffix))

    def read(self, name: str) -> bytes:
        """Return the bytes of one file. It is opened each time, so threads and processes share no file position."""
        where = self.files[name]
        if where is None:
            return (self.path / name).read_bytes()
        with self.path.open("rb", buffering=0) as tar:
            tar.seek(where[0])
            return tar.read(where[1])

    def _folder_files(self) -> dict[str, tuple[int, int] | None]:
        found: dict[str, tuple[int, int] | None] = {}
        seen: set[tuple[int, int]] = set()
        for folder, folders, files in os.walk(self.path, followlinks=True):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:  # a loop of symbolic links
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            inside = Path(folder).relative_to(self.path)
            found |= {(inside / name).as_posix(): None for name in files if not name.startswith(".")}
        return found

    def _tar_files(self) -> dict[str, tuple[int, int] | None]:
        found: dict[str, tuple[int, int] | None] = {}
        for member in tar_members(self.path):
            name = PurePosixPath(member.name)
            if why_unusable(member) is None and not any(part.startswith(".") for part in name.parts):
                found[str(name)] = (member.offset_data, member.size)
        return found


@dataclass(frozen=True, kw_only=True)
class Object:
    """One annotated object of an image."""

    name: str  # for messages: "object 2 of Annotations/000005.xml"
    box: Box
    label: int  # from 1; 0 is the background
    crowd: bool = False  # COCO: one segmentation of many objects
    difficult: bool = False  # VOC
    segmentation: Any = None  # COCO: polygons or run lengths

    @property
    def ignored(self) -> bool:
        """Whether the object is excluded from training and from scores."""
        return self.crowd or self.difficult


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One annotated image."""

    name: str  # of the file, relative to the root
    height: int
    width: int
    objects: tuple[Object, ...]

    @property
    def boxes(self) -> Float32[np.ndarray, "object 4"]:
        return np.array([one.box for one in self.objects], np.float32).reshape(-1, 4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Annotations:
    """One split of a set of annotated images."""

    root: AnnotationRoot
    classes: tuple[str, ...]
    scenes: Sequence[Scene]
    notes: tuple[str, ...] = ()  # boxes that were clipped or left out

    def __len__(self) -> int:
        return len(self.scenes)

    @property
    def object_count(self) -> int:
        """Number of objects, without the ignored ones."""
        return sum(not one.ignored for scene in self.scenes for one in scene.objects)

    @property
    def key(self) -> str:
        """16 hex digits of all annotations."""
        digest = hashlib.blake2b(repr(self.classes).encode(), digest_size=8)
        for scene in self.scenes:  # one by one: the text of all segmentations could fill the memory
            digest.update(repr(scene).encode())
        return digest.hexdigest()

    def select(self, indices: NDArray[np.int64]) -> "Annotations":
        """Keep only these images."""
        return replace(self, scenes=[self.scenes[index] for index in indices])

    def pixels(self, index: int) -> UInt8[np.ndarray, "height width channel"]:
        """Decode one image, and check that it has the annotated size."""
        scene = self.scenes[index]
        try:
            with quiet():
                pixels = decode(self.root.read(scene.name))
        except Exception as error:  # PIL's plugins raise almost any exception on a broken file
            raise ValueError(f"{self.root.path / scene.name} cannot be read as an image ({error})") from error
        if pixels.shape[:2] != (scene.height, scene.width):
            raise ValueError(
                f"{self.root.path / scene.name} has {pixels.shape[1]} x {pixels.shape[0]} pixels, its annotation says"
                f" {scene.width} x {scene.height}: was it resized, or is it rotated by its EXIF orientation?"
            )
        return pixels


@dataclass(kw_only=True)
class BoxClipper:
    """Clips boxes to their images, and remembers which boxes were clipped or left out."""

    clipped: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def clip(self, name: str, box: Sequence[float], width: int, height: int) -> Box | None:
        """Return the part of the box inside the image; None if there is none.

        >>> clipper = BoxClipper()
        >>> clipper.clip("a", (-2, 5, 8, 20), 10, 10), clipper.clip("b", (4, 4, 4, 9), 10, 10), clipper.notes()[0]
        ((0.0, 5.0, 8.0, 10.0), None, 'boxes over the border, clipped: 1, first a')
        """
        x0, y0, x1, y1 = (float(value) for value in box)
        inside = (max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height)))
        if not (inside[0] < inside[2] and inside[1] < inside[3]):
            self.left_out.append(name)
            return None
        if max(abs(a - b) for a, b in zip(inside, (x0, y0, x1, y1), strict=True)) > TOLERANCE:
            self.clipped.append(name)
        return inside

    def notes(self) -> tuple[str, ...]:
        """One line for the user about the clipped boxes, and one about those left out."""
        kinds = {"over the border, clipped": self.clipped, "empty or outside their image, left out": self.left_out}
        return tuple(f"boxes {what}: {len(names)}, first {names[0]}" for what, names in kinds.items() if names)


def four_numbers(values: Any, name: str) -> list[float]:
    """Convert to four finite numbers; the error names the object."""
    try:
        found = [float(value) for value in values]
    except (TypeError, ValueError):
        found = []
    if len(found) != 4 or not np.isfinite(found).all():
        raise ValueError(f"{name} has the box {values!r}, expected 4 numbers")
    return found


def require_images(root: AnnotationRoot, scenes: Sequence[Scene], source: str) -> None:
    """Raise ValueError if images are missing, with their number and the first name."""
    missing = [scene.name for scene in scenes if scene.name not in root]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(scenes)} images named in {source} are missing in {root.path}:"
            f" the first is {missing[0]}"
        )


def random_split(scenes: Sequence[Scene], split: str, seed: int, path: Path) -> list[Scene]:
    """Split images without split lists by the seed: a fifth for testing, the rest for training."""
    if len(scenes) < 2:
        raise ValueError(f"{path} has {len(scenes)} annotated image(s), too few to split into training and test")
    order = np.random.default_rng(seed).permutation(len(scenes))
    count = max(1, len(scenes) // 5)
    return [scenes[index] for index in sorted(order[:count] if split == "test" else order[count:])]
