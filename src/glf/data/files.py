"""Image files of a folder or an uncompressed tar. Their paths give the split and the class."""

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from glf.data.decode import EXTENSIONS, VERSION
from glf.data.entries import CompactEntries, Entry
from glf.data.source import UNREAD, MissingSplit, Skipped, Source
from glf.data.tar import tar_members, why_unusable
from glf.files import open_regular
from glf.ui import SlowWork

MAX_BYTES = 2**30  # of a file; no image that is decoded takes as many, even without compression
TEST_FOLDERS = ("test", "val", "valid", "validation")  # the first of these next to `train` is the test split
SYSTEM = ("/proc", "/sys")  # their files are made when they are read, and their links lead everywhere
SAMPLED = 16  # files with content that enters the key


@dataclass(frozen=True, kw_only=True, eq=False)
class Files(Source):
    """The image files of one split, sorted by name."""

    root: Path  # the folder or the tar
    entries: CompactEntries
    targets: NDArray[np.int64]
    classes: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()

    @cached_property
    def key(self) -> str:
        """16 hex digits of names, sizes and modification times, and of the content of some files.

        Archivers often set modification times to a constant, and uncompressed formats give files of one name and size
        with other pixels; hence the content.
        """
        return self._digest(lambda entry: tuple(entry))

    @cached_property
    def listing(self) -> str:
        return self._digest(lambda entry: (entry.name, entry.size))

    def _digest(self, facts: Callable[[Entry], tuple[object, ...]]) -> str:
        digest = hashlib.blake2b(repr(VERSION).encode(), digest_size=8)
        for entry in self.entries:
            digest.update(repr(facts(entry)).encode())
        for i in range(0, len(self), -(-len(self) // SAMPLED)):
            try:
                digest.update(hashlib.blake2b(self.read(i)).digest())
            except (OSError, ValueError):
                digest.update(b"unreadable")
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.entries)

    def name(self, i: int) -> str:
        name: str = self.entries[i].name
        return name

    def path(self, i: int) -> str:
        return str(self.root / self.name(i))

    def read(self, i: int) -> bytes:
        """Return the bytes of one file. It is opened each time, so threads share no file position."""
        entry = self.entries[i]
        if entry.size > MAX_BYTES:
            raise ValueError(f"a file of {entry.size:,} bytes, more than {MAX_BYTES:,}")
        with open_regular(self._file(i)) as file:
            file.seek(entry.offset or 0)
            data = file.read(entry.size)
            size = os.fstat(file.fileno()).st_size if entry.offset is None else len(data)
        if not len(data) == size == entry.size:
            raise OSError(f"it had {entry.size} bytes and has {size}")
        return data

    def check_unchanged(self, i: int) -> None:
        """Raise OSError if a file was modified after it was listed: its pixels would be cached under a wrong key."""
        if os.stat(self._file(i)).st_mtime_ns != self.entries[i].stamp:
            raise OSError("it changed since it was listed")

    def _file(self, i: int) -> Path:
        entry = self.entries[i]
        return self.root / entry.name if entry.offset is None else self.root

    def with_labels(self, names: list[str], classes: list[str]) -> "Files":
        """Return the same files with a class name for each; a target is the index of its name in ``classes``."""
        number = {name: i for i, name in enumerate(classes)}
        return replace(self, targets=np.array([number[n] for n in names], np.int64), classes=tuple(classes))

    def __str__(self) -> str:
        return str(self.root)


def list_files(path: Path, split: str, *, test_folders: Collection[str] = TEST_FOLDERS) -> Files:
    """List the image files of one split of a folder or a tar, or ``all`` of them.

    A top-level folder ``train`` is the training split, and the first of ``test_folders`` next to it is the test split.
    Without ``train``, everything is the training split. The first folder below is the class, if every image is in one
    and there are at least two. Classes are numbered over both splits, so that a target means the same class in both
    even if one split lacks a class.
    """
    if path.is_dir() and os.stat(path).st_dev in _system_devices():
        raise ValueError(f"{path} holds no files, but what the system says about itself: give a folder of images")
    listing = _Folder(path) if path.is_dir() else _Tar(path)
    tops = listing.folders("")
    prefixes = {"all": ""} if split == "all" else {"train": ""}
    if "train" in tops and split != "all":
        prefixes = {"train": "train/"}
        test = next((name for name in test_folders if name in tops), None)
        if test is not None:
            prefixes["test"] = f"{test}/"
    if split not in prefixes:
        raise MissingSplit(f"{path} has no split {split!r}, it has {', '.join(prefixes)}")
    prefix = prefixes[split]
    entries = sorted(listing.images(prefix))
    skipped = tuple(sorted(listing.skipped))
    if not entries:
        reason = f" ({len(skipped)} skipped, first {skipped[0].line(': ')})" if skipped else ""
        raise ValueError(
            f"no images in {path / prefix}: looked for {' '.join(EXTENSIONS)}{reason}; give another folder"
        )
    unlabelled = np.full(len(entries), -1, np.int64)
    files = Files(root=path, entries=CompactEntries(entries), targets=unlabelled, classes=(), skipped=skipped)

    inside = [entry.name[len(prefix) :].split("/") for entry in entries]
    groups = {split: {parts[0] for parts in inside if len(parts) > 1}}
    for other in prefixes.keys() - {split}:
        groups[other] = listing.groups(prefixes[other])
    classes = sorted(set().union(*(names for names in groups.values() if len(names) > 1)))
    if all(len(parts) > 1 for parts in inside) and groups[split] <= set(classes):
        return files.with_labels([parts[0] for parts in inside], classes)
    return files


def has_images(folder: Path) -> bool:
    """Whether there is an image file in a folder, at any depth."""
    return next(_Folder(folder).images(""), None) is not None


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)


class _Folder:
    """A folder on disk. A prefix is a folder inside with a slash at its end, or empty."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.skipped: list[Skipped] = []  # what ``images`` could not read

    def folders(self, prefix: str) -> set[str]:
        """Return the folders directly below."""
        return {item.name for item in self._visible(prefix) if _is_folder(item)}

    def groups(self, prefix: str) -> set[str]:
        """Return the folders directly below that contain an image at any depth."""
        return {n for n in self.folders(prefix) if next(self.images(f"{prefix}{n}/"), None) is not None}

    def images(self, prefix: str) -> Iterator[Entry]:
        """Yield every image below. Each folder is entered once, so loops of symbolic links end.

        Real folders come first: a folder that is also linked from elsewhere counts where it really is. Unreadable or
        vanished items are added to ``skipped``.
        """
        pending, links, seen = [prefix], list[str](), set[tuple[int, int]]()
        system, slow = _system_devices(), SlowWork(f"listing {self.root}", "image")
        while pending or links:
            at = pending.pop() if pending else links.pop(0)
            try:
                status = os.stat(self.root / at)
                items = self._visible(at)
            except OSError as error:
                self._skip(at, error)
                continue
            if (status.st_dev, status.st_ino) in seen:
                continue
            if status.st_dev in system:
                self.skipped.append(Skipped(at, "a folder of the system, not of files"))
                continue
            seen.add((status.st_dev, status.st_ino))
            for item in items:
                if _is_folder(item):
                    (links if item.is_symlink() else pending).append(f"{at}{item.name}/")
                elif _is_image(item.name):
                    try:
                        status = item.stat()
                    except OSError as error:  # a link to nowhere or to itself
                        self._skip(at + item.name, error)
                        continue
                    if stat.S_ISREG(status.st_mode):
                        slow.advance()
                        yield Entry(at + item.name, status.st_size, status.st_mtime_ns)

    def _visible(self, prefix: str) -> list[os.DirEntry[str]]:
        with os.scandir(self.root / prefix) as items:
            return sorted((i for i in items if not i.name.startswith(".")), key=lambda item: item.name)

    def _skip(self, name: str, error: OSError) -> None:
        self.skipped.append(Skipped(name, UNREAD + (error.strerror or str(error))))


def _system_devices() -> set[int]:
    """Return the devices that SYSTEM is on, unless they are those of ordinary files."""
    return {os.stat(name).st_dev for name in SYSTEM if os.path.isdir(name)} - {os.stat("/").st_dev}


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link to itself, or through a folder that may not be entered
        return False


class _Tar:
    """An uncompressed tar with the methods of ``_Folder``."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self.entries, self.skipped = _members(path.resolve(), status.st_size, status.st_mtime_ns)

    def folders(self, prefix: str) -> set[str]:
        inside = (entry.name[len(prefix) :] for entry in self.images(prefix))
        return {name.split("/")[0] for name in inside if "/" in name}

    groups = folders  # a folder is known from its images

    def images(self, prefix: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry.name.startswith(prefix))


@lru_cache(maxsize=2)
def _members(path: Path, size: int, stamp: int) -> tuple[tuple[Entry, ...], tuple[Skipped, ...]]:
    """List the images of a tar; cached, because both splits are usually loaded one after the other.

    Hidden files are ignored. Of two members with one name the later counts, as when unpacking. A single folder around
    everything is removed, so that the tar of a folder reads like the folder.
    """
    found: dict[str, Entry] = {}
    skipped: dict[str, Skipped] = {}
    slow = SlowWork(f"listing {path}", "member")
    for member in tar_members(path):
        slow.advance()
        inside = PurePosixPath(member.name)
        hidden = any(part.startswith(".") and part != ".." for part in inside.parts)
        if hidden or member.isdir() or not _is_image(inside.name):
            continue
        why = why_unusable(member)
        if why is not None:
            skipped[member.name] = Skipped(member.name, why)
        else:
            found[str(inside)] = Entry(str(inside), member.size, stamp, member.offset_data)
    entries = tuple(found.values())
    tops = {name.split("/")[0] if "/" in name else "" for name in found}
    if len(tops) == 1 and not tops & {"", "train", *TEST_FOLDERS}:
        entries = tuple(entry._replace(name=entry.name.split("/", 1)[1]) for entry in entries)
    return entries, tuple(skipped.values())
