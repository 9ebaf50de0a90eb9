"""The image files of a folder or a tar, with the split and the class that their place implies."""

import os
import tarfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.data.decode import EXTENSIONS
from glf.data.store import MissingSplit

TEST_FOLDERS = ("test", "val", "valid", "validation")  # the first of these beside `train` is the test split


class Entry(NamedTuple):
    """One image file and what tells its versions apart without reading it."""

    name: str  # inside the folder or the tar, parts separated by "/"
    size: int
    stamp: int  # time of the last change in nanoseconds: of the file, or of the tar it is in
    offset: int | None = None  # where its bytes begin in the tar


@dataclass(frozen=True, kw_only=True, eq=False)
class Files:
    """The image files of one split, sorted by name."""

    root: Path  # the folder or the tar
    entries: Sequence[Entry]
    targets: NDArray[np.int64]  # (entry,), -1 where there is no label
    classes: tuple[str, ...]

    def read(self, entry: Entry) -> bytes:
        """The bytes of one file, opened anew each time: no shared position, so any thread may read."""
        if entry.offset is None:
            return (self.root / entry.name).read_bytes()
        with self.root.open("rb", buffering=0) as tar:
            tar.seek(entry.offset)
            return tar.read(entry.size)

    def labelled(self, names: list[str], classes: list[str]) -> "Files":
        """The same files with a class name for each entry, numbered by their place in ``classes``."""
        number = {name: i for i, name in enumerate(classes)}
        return replace(self, targets=np.array([number[n] for n in names], np.int64), classes=tuple(classes))


def find(path: Path, split: str, *, test_folders: Collection[str] = TEST_FOLDERS) -> Files:
    """The image files of one split of a folder or a tar.

    With a ``train`` folder at the top, that is the training split and the first of ``test_folders`` that
    exists is the test split; without one, everything is the training split. The first folder below is the
    class if every image is in one and there are at least two. The classes are numbered over both splits, so
    that a number means the same class in both even where one split lacks a class.
    """
    source = _Folder(path) if path.is_dir() else _Tar(path)
    tops = source.folders("")
    prefixes = {"train": ""}
    if "train" in tops:
        prefixes = {"train": "train/"}
        test = next((name for name in test_folders if name in tops), None)
        if test is not None:
            prefixes["test"] = f"{test}/"
    if split not in prefixes:
        raise MissingSplit(f"{path} has no split {split!r}, it has {', '.join(prefixes)}")
    prefix = prefixes[split]
    entries = tuple(sorted(source.images(prefix)))
    if not entries:
        raise ValueError(f"no images in {path / prefix}: looked for {' '.join(EXTENSIONS)}")
    files = Files(root=path, entries=entries, targets=np.full(len(entries), -1, np.int64), classes=())

    inside = [entry.name[len(prefix) :].split("/") for entry in entries]
    groups = {split: {parts[0] for parts in inside if len(parts) > 1}}
    for other in prefixes.keys() - {split}:
        groups[other] = source.groups(prefixes[other])
    classes = sorted(set().union(*(names for names in groups.values() if len(names) > 1)))
    if all(len(parts) > 1 for parts in inside) and groups[split] <= set(classes):
        return files.labelled([parts[0] for parts in inside], classes)
    return files


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


class _Folder:
    """A folder on disk. A prefix is a folder inside with a slash at its end, or nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folders(self, prefix: str) -> set[str]:
        """The folders directly below."""
        return {item.name for item in self._visible(prefix) if item.is_dir()}

    def groups(self, prefix: str) -> set[str]:
        """The folders directly below that hold an image somewhere; stops at the first of each."""
        return {n for n in self.folders(prefix) if next(self.images(f"{prefix}{n}/"), None) is not None}

    def images(self, prefix: str) -> Iterator[Entry]:
        """Every image below. Each folder is entered once, so a loop of symbolic links ends.

        Real folders come first: a folder that is also linked to from elsewhere counts where it really is.
        """
        pending, links, seen = [prefix], list[str](), set[tuple[int, int]]()
        while pending or links:
            at = pending.pop() if pending else links.pop(0)
            status = os.stat(self.root / at)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            for item in self._visible(at):
                if item.is_dir():
                    (links if item.is_symlink() else pending).append(f"{at}{item.name}/")
                elif _is_image(item.name) and item.is_file():
                    yield Entry(at + item.name, item.stat().st_size, item.stat().st_mtime_ns)

    def _visible(self, prefix: str) -> list[os.DirEntry[str]]:
        with os.scandir(self.root / prefix) as items:
            return sorted((i for i in items if not i.name.startswith(".")), key=lambda item: item.name)


class _Tar:
    """An uncompressed tar, asked the same questions."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self.entries = _members(path.resolve(), status.st_size, status.st_mtime_ns)

    def folders(self, prefix: str) -> set[str]:
        inside = (entry.name[len(prefix) :] for entry in self.images(prefix))
        return {name.split("/")[0] for name in inside if "/" in name}

    groups = folders  # a folder is known from the images in it

    def images(self, prefix: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.name.startswith(prefix))


@lru_cache(maxsize=2)
def _members(path: Path, size: int, stamp: int) -> tuple[Entry, ...]:
    """The images of a tar; remembered, because the two splits are usually loaded one after the other.

    Links, names that leave the archive, and hidden files are passed over; of two members with one name the
    later counts, as when unpacking. A single folder around everything is taken off, so that the tar of a
    folder reads like the folder.
    """
    found: dict[str, Entry] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                place = PurePosixPath(member.name)
                hidden = any(part.startswith(".") for part in place.parts)  # ".." is hidden too
                inside = not hidden and not place.is_absolute()
                if inside and _is_image(place.name) and member.isreg() and not member.issparse():
                    found[str(place)] = Entry(str(place), member.size, stamp, member.offset_data)
    except tarfile.TarError as error:
        raise ValueError(f"{path} cannot be read as an uncompressed tar: {error}") from error
    tops = {name.split("/")[0] if "/" in name else "" for name in found}
    if len(tops) == 1 and not tops & {"", "train", *TEST_FOLDERS}:
        return tuple(entry._replace(name=name.split("/", 1)[1]) for name, entry in found.items())
    return tuple(found.values())
