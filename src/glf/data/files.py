"""The members of a tar, from first to last, or an error: never a part of them without a word."""
# MERGED DOCS:
# | """The image files of a folder or a tar, with the split and the class that their place implies."""

import os
import stat
import tarfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.data.decode import EXTENSIONS
from glf.data.images import UNREAD, MissingSplit, Skipped

PADDING = 2**20  # bytes looked at behind the end, where there should be zeros


def tar_members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Every member of an uncompressed tar; ValueError where it is cut short or damaged.

    Python's reader takes a header that it cannot read for the end of the archive, does without the block of zeros that
    belongs there, and follows a size below zero backwards for ever. All three are looked for here, and so is another
    archive behind the end.
    """
    try:
        with tarfile.open(path, "r:") as tar, open(path, "rb") as file:
            for member in tar:
                if member.size < 0:
                    raise tarfile.ReadError(f"the member at byte {member.offset} has a size below zero")
                yield member
            file.seek(tar.offset)
            after = file.read(PADDING)
        if len(after) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"cut short: it has no end after byte {tar.offset}")
        if after[: tarfile.BLOCKSIZE].strip(b"\0"):
            raise tarfile.ReadError(f"damaged at byte {tar.offset}")
        if after.strip(b"\0"):
            raise tarfile.ReadError(f"it goes on after its end at byte {tar.offset}, like several tars in one file")
    except (OSError, GeneratorExit):
        raise
    except Exception as error:  # a damaged header makes the reader raise almost anything
        why = str(error) or type(error).__name__
        raise ValueError(f"{path} cannot be read as an uncompressed tar: {why}") from error


def why_passed_over(member: tarfile.TarInfo) -> str | None:
    """What keeps a member from being read as a file where it lies; None for one that can be."""
    place = PurePosixPath(member.name)
    if place.is_absolute() or ".." in place.parts:
        return "its name leads out of the tar"
    if member.islnk() or member.issym():
        return "a link, not a file"
    if not member.isreg():
        return "no regular file"
    return "stored with holes, as a sparse file" if member.issparse() else None


LARGEST = 2**30  # bytes of a file; no image that is decoded takes as many, even without compression
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
    missed: tuple[Skipped, ...] = ()  # what was found and cannot be an entry

    def read(self, entry: Entry) -> bytes:
        """The bytes of one file, opened anew each time: no shared position, so any thread may read."""
        if entry.size > LARGEST:
            raise ValueError(f"a file of {entry.size:,} bytes, more than {LARGEST:,}")
        with self._place(entry).open("rb") as file:
            file.seek(entry.offset or 0)
            data = file.read(entry.size)
            size = os.fstat(file.fileno()).st_size if entry.offset is None else len(data)
        if not len(data) == size == entry.size:
            raise OSError(f"it had {entry.size} bytes and has {size}")
        return data

    def check_unchanged(self, entry: Entry) -> None:
        """Raises OSError where a file is no longer the one that was listed: its pixels would go by another's key."""
        if os.stat(self._place(entry)).st_mtime_ns != entry.stamp:
            raise OSError("it changed since it was listed")

    def _place(self, entry: Entry) -> Path:
        return self.root / entry.name if entry.offset is None else self.root

    def labelled(self, names: list[str], classes: list[str]) -> "Files":
        """The same files with a class name for each entry, numbered by their place in ``classes``."""
        number = {name: i for i, name in enumerate(classes)}
        return replace(self, targets=np.array([number[n] for n in names], np.int64), classes=tuple(classes))


def find(path: Path, split: str, *, test_folders: Collection[str] = TEST_FOLDERS) -> Files:
    """The image files of one split of a folder or a tar, or ``all`` of them.

    With a ``train`` folder at the top, that is the training split and the first of ``test_folders`` that
    exists is the test split; without one, everything is the training split. The first folder below is the
    class if every image is in one and there are at least two. The classes are numbered over both splits, so
    that a number means the same class in both even where one split lacks a class.
    """
    source = _Folder(path) if path.is_dir() else _Tar(path)
    tops = source.folders("")
    prefixes = {"all": ""} if split == "all" else {"train": ""}
    if "train" in tops and split != "all":
        prefixes = {"train": "train/"}
        test = next((name for name in test_folders if name in tops), None)
        if test is not None:
            prefixes["test"] = f"{test}/"
    if split not in prefixes:
        raise MissingSplit(f"{path} has no split {split!r}, it has {', '.join(prefixes)}")
    prefix = prefixes[split]
    entries = tuple(sorted(source.images(prefix)))
    missed = tuple(sorted(source.missed))
    if not entries:
        beside = f" ({len(missed)} passed over, first {missed[0].line(': ')})" if missed else ""
        raise ValueError(
            f"no images in {path / prefix}: looked for {' '.join(EXTENSIONS)}{beside}; give another folder"
        )
    unlabelled = np.full(len(entries), -1, np.int64)
    files = Files(root=path, entries=entries, targets=unlabelled, classes=(), missed=missed)

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
        self.missed: list[Skipped] = []  # what ``images`` could not look at

    def folders(self, prefix: str) -> set[str]:
        """The folders directly below."""
        return {item.name for item in self._visible(prefix) if _is_folder(item)}

    def groups(self, prefix: str) -> set[str]:
        """The folders directly below that hold an image somewhere; stops at the first of each."""
        return {n for n in self.folders(prefix) if next(self.images(f"{prefix}{n}/"), None) is not None}

    def images(self, prefix: str) -> Iterator[Entry]:
        """Every image below. Each folder is entered once, so a loop of symbolic links ends.

        Real folders come first: a folder that is also linked to from elsewhere counts where it really is. What cannot
        be looked at, or is gone by the time it is, becomes a part of ``missed``.
        """
        pending, links, seen = [prefix], list[str](), set[tuple[int, int]]()
        while pending or links:
            at = pending.pop() if pending else links.pop(0)
            try:
                status = os.stat(self.root / at)
                items = self._visible(at)
            except OSError as error:
                self._miss(at, error)
                continue
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            for item in items:
                if _is_folder(item):
                    (links if item.is_symlink() else pending).append(f"{at}{item.name}/")
                elif _is_image(item.name):
                    try:
                        status = item.stat()
                    except OSError as error:  # a link to nowhere or to itself
                        self._miss(at + item.name, error)
                        continue
                    if stat.S_ISREG(status.st_mode):
                        yield Entry(at + item.name, status.st_size, status.st_mtime_ns)

    def _visible(self, prefix: str) -> list[os.DirEntry[str]]:
        with os.scandir(self.root / prefix) as items:
            return sorted((i for i in items if not i.name.startswith(".")), key=lambda item: item.name)

    def _miss(self, name: str, error: OSError) -> None:
        self.missed.append(Skipped(name, UNREAD + (error.strerror or str(error))))


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link that leads to itself, or through a folder that may not be entered
        return False


class _Tar:
    """An uncompressed tar, asked the same questions."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self.entries, self.missed = _members(path.resolve(), status.st_size, status.st_mtime_ns)

    def folders(self, prefix: str) -> set[str]:
        inside = (entry.name[len(prefix) :] for entry in self.images(prefix))
        return {name.split("/")[0] for name in inside if "/" in name}

    groups = folders  # a folder is known from the images in it

    def images(self, prefix: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.name.startswith(prefix))


@lru_cache(maxsize=2)
def _members(path: Path, size: int, stamp: int) -> tuple[tuple[Entry, ...], tuple[Skipped, ...]]:
    """The images of a tar; remembered, because the two splits are usually loaded one after the other.

    Hidden files are ignored; of two members with one name the later counts, as when unpacking. A single folder around
    everything is taken off, so that the tar of a folder reads like the folder.
    """
    found: dict[str, Entry] = {}
    missed: dict[str, Skipped] = {}
    for member in tar_members(path):
        place = PurePosixPath(member.name)
        hidden = any(part.startswith(".") and part != ".." for part in place.parts)
        if hidden or member.isdir() or not _is_image(place.name):
            continue
        why = why_passed_over(member)
        if why is not None:
            missed[member.name] = Skipped(member.name, why)
        else:
            found[str(place)] = Entry(str(place), member.size, stamp, member.offset_data)
    entries = tuple(found.values())
    tops = {name.split("/")[0] if "/" in name else "" for name in found}
    if len(tops) == 1 and not tops & {"", "train", *TEST_FOLDERS}:
        entries = tuple(entry._replace(name=entry.name.split("/", 1)[1]) for entry in entries)
    return entries, tuple(missed.values())
