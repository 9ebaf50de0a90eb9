"""Cache of decoded images: every source is decoded once, into one array or only to check it, and found again later.

The cache folder holds ``<key>.json`` (shape and skipped files of a source) and, if the pixels were stored,
``<key>.npy``.
"""

import hashlib
import json
import os
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.config.training import Store
from glf.data.decode import StoredSize, side_limits
from glf.data.decode_all import decode_all, is_stored
from glf.data.images import DecodeOnRead
from glf.data.source import UNREAD, Skipped, Source
from glf.files import atomic_write, exclusive_lock, explain_full_disk

DAY = 24 * 60 * 60
CACHE_ADVICE = (
    "free some space there, set GLF_CACHE to a folder on another disk, or decode the images at every epoch"
    " (--store decode)"
)


class CachedImages(NamedTuple):
    """The decodable images of a source."""

    pixels: NDArray[np.uint8] | DecodeOnRead
    indices: NDArray[np.int64]  # of each image in the source
    skipped: tuple[Skipped, ...]
    key: str  # the same for cached pixels and for those decoded on read, because the pixels are the same


class CacheEntry(NamedTuple):
    """What the cache knows about a source."""

    shape: StoredSize
    skipped: tuple[Skipped, ...]


def cache_root() -> Path:
    """Return the folder of all derived files: GLF_CACHE, or a folder in the user's home."""
    return Path(os.environ.get("GLF_CACHE") or Path.home() / ".cache" / "glf")


def load_or_build(
    source: Source, *, size: int | None = None, store: Store = "auto", progress: bool = True
) -> CachedImages:
    """Return the images of a source from the cache; decode all of them first if they are not in it.

    ``size`` is the crop that training uses. Images that all have one square size of at most 8/7 of it (96 px if no size
    is given) keep it; any others are resized to 8/7 of it (of 224 px), the usual margin for random crops. Of processes
    that start together one decodes and the others wait. Raises ValueError if more than half of the images are bad.
    """
    folder = cache_root() / "images"
    keys = cache_keys(source, size)
    cached = _find(folder, keys, source, size, store)
    if cached is None:
        began = time.time()
        with exclusive_lock(folder / keys[1]):
            cached = _find(folder, keys, source, size, store, since=began)
            return cached or _build(folder, keys, source, size, store, progress)
    return cached


def cache_keys(source: Source, size: int | None) -> tuple[str, str]:
    """Return the key of the images at their own size, which is the same for every ``size``, and of resized images."""
    texts = (f"{source.key} native", f"{source.key} resized for {size}")
    native, resized = (hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in texts)
    return native, resized


def _find(
    folder: Path, keys: tuple[str, str], source: Source, size: int | None, store: Store, since: float | None = None
) -> CachedImages | None:
    """Return the images of a source if they are in the cache."""
    native, resized = keys
    for key in (native, resized):
        entry = _read_entry(folder, key, since)
        if entry is not None and (key == resized or entry.shape.side <= side_limits(size).keep):
            cached = _open(folder, key, source, entry, store)
            if cached is not None:
                return cached
    return None


def _build(
    folder: Path, keys: tuple[str, str], source: Source, size: int | None, store: Store, progress: bool
) -> CachedImages:
    """Decode all images."""
    native, resized = keys
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    path = folder / f"{resized}.{uuid.uuid4().hex}.tmp"  # a unique name, because not every disk has locks
    try:
        with explain_full_disk(folder, CACHE_ADVICE):
            shape, skipped, stored = decode_all(path, source, size=size, store=store, progress=progress)
        key = resized if shape.resized else native
        with atomic_write(folder / f"{key}.json", CACHE_ADVICE) as note:  # before the pixels, which need it
            note.write_text(json.dumps({**shape._asdict(), "skipped": skipped}))
        if stored:
            os.replace(path, folder / f"{key}.npy")
    finally:
        path.unlink(missing_ok=True)
    entry = CacheEntry(shape, tuple(skipped))
    cached = _open(folder, key, source, entry, "pack" if stored else "decode")
    assert cached is not None
    return cached


def _read_entry(folder: Path, key: str, since: float | None) -> CacheEntry | None:
    """Return what the cache knows about this key; None if it knows nothing reliable.

    A file that could not be read may be readable next time, so a source that lacks one is decoded again, unless another
    process has done so after ``since``: processes that train together must agree on the images.
    """
    try:
        path = folder / f"{key}.json"
        fresh = since is not None and path.stat().st_mtime >= since
        note = json.loads(path.read_text())
        skipped = tuple(Skipped(*pair) for pair in note["skipped"])
        shape = StoredSize(*(note[name] for name in StoredSize._fields))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return None if _any_unread(skipped) and not fresh else CacheEntry(shape, skipped)


def _any_unread(skipped: tuple[Skipped, ...]) -> bool:
    return any(one.why.startswith(UNREAD) for one in skipped)


def _open(folder: Path, key: str, source: Source, entry: CacheEntry, store: Store) -> CachedImages | None:
    """Return the images of this key as ``store`` wants them; None if they have to be decoded first."""
    (side, channels, _), skipped = entry
    indices = np.arange(len(source))
    if skipped:
        bad = {one.name for one in skipped}
        indices = np.array([i for i in range(len(source)) if source.name(i) not in bad], np.int64)
    if len(indices) + len(skipped) != len(source):  # the entry belongs to other files
        return None
    pixels: NDArray[np.uint8] | DecodeOnRead | None = None
    if store != "decode":
        pixels = _mapped(folder / f"{key}.npy", (len(indices), side, side, channels))
    if pixels is None:
        if is_stored(folder, len(source) * entry.shape.nbytes, store):  # counts bad images too, as decode_all does
            return None
        pixels = DecodeOnRead(source=source, indices=indices, form=entry.shape)
    if _any_unread(skipped):  # other images than those of a load that could read all files
        key = hashlib.blake2b(key.encode() + indices.tobytes(), digest_size=8).hexdigest()
    return CachedImages(pixels, indices, skipped, key)


def _mapped(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    try:
        pixels: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, EOFError, ValueError):
        return None
    return pixels if pixels.shape == shape else None


def _remove_leftovers(folder: Path) -> None:
    """Delete files of killed processes; a file that is still being written is younger than a day."""
    for path in folder.glob("*.tmp"):
        try:
            if time.time() - path.stat().st_mtime > DAY:
                path.unlink()
        except FileNotFoundError:  # another process was faster
            pass
