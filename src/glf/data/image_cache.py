"""Small arrays are read into memory; large ones stay mapped, and go to another process by their file's name."""
# MERGED DOCS:
# | """Image files as images: packed into a store in the cache, or checked once; the next load finds what came of it."""

import hashlib
import json
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.config.training import Store
from glf.data.decode import StoredSize, side_limits
from glf.data.decode_all import decode_all, is_stored
from glf.data.files import Files
from glf.data.images import UNREAD, Skipped
from glf.data.lazy import CompactEntries, DecodeOnRead
from glf.files import atomic_write, exclusive_lock, explain_full_disk

VERSION = 4  # raise it whenever the same files would be packed to other pixels
DAY = 24 * 60 * 60
CACHE_ADVICE = (
    "make room there, set GLF_CACHE to a folder on another disk, or leave the images to be decoded at every epoch"
    " (--store decode)"
)


class CachedImages(NamedTuple):
    """Images that can be indexed, and which files they are."""

    pixels: NDArray[np.uint8] | DecodeOnRead
    rows: NDArray[np.int64]  # the entry that each image comes from
    skipped: tuple[Skipped, ...]
    key: str  # the same wherever the pixels come from, because they are the same


class CacheEntry(NamedTuple):
    """What the cache remembers about a set of files, packed or not."""

    shape: StoredSize
    skipped: tuple[Skipped, ...]


def cache_root() -> Path:
    """Where derived files go: GLF_CACHE, or a folder below the user's home."""
    return Path(os.environ.get("GLF_CACHE") or Path.home() / ".cache" / "glf")


def load_or_build(
    files: Files, *, size: int | None = None, store: Store = "auto", progress: bool = True
) -> CachedImages:
    """The images of ``files``: packed into the cache, or left as files that are known to be good.

    ``size`` is the crop that training wants. Images that all have one square size not above 8/7 of it (or,
    without it, 96 pixels) are kept; any others are brought to 8/7 of it (without it: of 224), the customary
    margin for random crops. Every file is decoded once, and what came of it is remembered; of processes that start
    together one does it, and the others wait. Raises ValueError if more than half of the files are bad.
    """
    folder = cache_root() / "images"
    keys = pack_keys(files, size)
    held = _found(folder, keys, files, size, store)
    if held is None:
        began = time.time()
        with exclusive_lock(folder / keys[1]):
            held = _found(folder, keys, files, size, store, since=began)
            return held or _packed(folder, keys, files, size, store, progress)
    return held


def _found(
    folder: Path, keys: tuple[str, str], files: Files, size: int | None, store: Store, since: float | None = None
) -> CachedImages | None:
    """What the cache has of these files."""
    native, resized = keys
    for key in (native, resized):
        known = _remembered(folder, key, since)
        if known is not None and (key == resized or known.shape.side <= side_limits(size).keep):
            held = _held(folder, key, files, known, store)
            if held is not None:
                return held
    return None


def _packed(
    folder: Path, keys: tuple[str, str], files: Files, size: int | None, store: Store, progress: bool
) -> CachedImages:
    """Decodes every file."""
    native, resized = keys
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    path = folder / f"{resized}.{uuid.uuid4().hex}.tmp"  # a name of its own: not every disk has locks
    try:
        with explain_full_disk(folder, CACHE_ADVICE):
            shape, skipped, stored = decode_all(path, files, size=size, store=store, progress=progress)
        key = resized if shape.resized else native
        with atomic_write(folder / f"{key}.json", CACHE_ADVICE) as note:  # first, so that a store never lacks its list
            note.write_text(json.dumps({**shape._asdict(), "skipped": skipped}))
        if stored:
            os.replace(path, folder / f"{key}.npy")  # whole, or not at all
    finally:
        path.unlink(missing_ok=True)
    held = _held(folder, key, files, CacheEntry(shape, tuple(skipped)), "pack" if stored else "decode")
    assert held is not None
    return held


def pack_keys(files: Files, size: int | None) -> tuple[str, str]:
    """The key of these files kept as they are, which is the same for every wanted size, and resized.

    Times of change are often set to a constant by archivers, and then formats without compression make files
    of one name and size with other pixels. So the bytes of a few files are hashed too.
    """
    digest = hashlib.blake2b(repr(VERSION).encode(), digest_size=8)
    for entry in files.entries:
        digest.update(repr(tuple(entry)).encode())
    for entry in files.entries[:: -(-len(files.entries) // 16)]:
        try:
            digest.update(hashlib.blake2b(files.read(entry)).digest())
        except (OSError, ValueError):
            digest.update(b"unreadable")
    native, resized = digest.copy(), digest.copy()
    native.update(b"native")
    resized.update(f"resized for {size}".encode())
    return native.hexdigest(), resized.hexdigest()


def _remembered(folder: Path, key: str, since: float | None) -> CacheEntry | None:
    """What the cache says about the files of this key; None where it says nothing that can be relied on.

    A file that could not be read may be readable the next time, so a set that lacks one is looked at again, unless
    another process has done so ``since``: processes that train together must not disagree about it.
    """
    try:
        path = folder / f"{key}.json"
        fresh = since is not None and path.stat().st_mtime >= since
        note = json.loads(path.read_text())
        skipped = tuple(Skipped(*pair) for pair in note["skipped"])
        shape = StoredSize(*(note[name] for name in StoredSize._fields))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return None if any(why.startswith(UNREAD) for _, why in skipped) and not fresh else CacheEntry(shape, skipped)


def _held(folder: Path, key: str, files: Files, known: CacheEntry, store: Store) -> CachedImages | None:
    """The images of this key as ``store`` wants them; None where they have to be packed first."""
    (side, channels, _), skipped = known
    bad = {name for name, _ in skipped}
    rows = np.array([i for i, entry in enumerate(files.entries) if entry.name not in bad], np.int64)
    if len(rows) + len(skipped) != len(files.entries):  # a list of other files
        return None
    pixels: NDArray[np.uint8] | DecodeOnRead | None = None
    if store != "decode":
        pixels = _mapped(folder / f"{key}.npy", (len(rows), side, side, channels))
    if pixels is None:
        if is_stored(folder, len(files.entries) * known.shape.nbytes, store):  # bad ones too, as fill() counts
            return None
        pixels = DecodeOnRead(files=replace(files, entries=CompactEntries(files.entries)), rows=rows, form=known.shape)
    if any(why.startswith(UNREAD) for _, why in skipped):  # other images than those of a load that could read all
        key = hashlib.blake2b(key.encode() + rows.tobytes(), digest_size=8).hexdigest()
    return CachedImages(pixels, rows, skipped, key)


def _mapped(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    try:
        pixels: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, EOFError, ValueError):
        return None
    return pixels if pixels.shape == shape else None


def _remove_leftovers(folder: Path) -> None:
    """Deletes what killed processes left behind; whatever is still being written is younger than a day."""
    for path in folder.glob("*.tmp"):
        try:
            if time.time() - path.stat().st_mtime > DAY:
                path.unlink()
        except FileNotFoundError:  # another process was faster
            pass
