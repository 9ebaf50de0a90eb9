"""Decodes image files once into a memory-mapped uint8 store in the cache; the next load finds it there."""

import hashlib
import json
import os
import time
import uuid
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.data.files import Files
from glf.data.fill import UNREAD, fill, side_limits
from glf.data.store import Skipped

VERSION = 1  # raise it whenever the same files would be packed to other pixels
DAY = 24 * 60 * 60


class Packed(NamedTuple):
    """A store that has been opened."""

    pixels: NDArray[np.uint8]
    rows: NDArray[np.int64]  # the entry that each image comes from
    skipped: tuple[Skipped, ...]
    key: str


def cache_root() -> Path:
    """Where derived files go: GLF_CACHE, or a folder below the user's home."""
    return Path(os.environ.get("GLF_CACHE") or Path.home() / ".cache" / "glf")


def pack(files: Files, *, size: int | None = None, progress: bool = True) -> Packed:
    """The decoded images of ``files``, from the cache if they are there.

    ``size`` is the crop that training wants. Images that all have one square size not above 8/7 of it (or,
    without it, 96 pixels) are kept; any others are brought to 8/7 of it (without it: of 224), the customary
    margin for random crops. Raises ValueError if more than half of the files are bad.
    """
    folder = cache_root() / "images"
    native, resized = pack_keys(files, size)
    packed = _opened(folder, native, files)
    if packed is not None and packed.pixels.shape[1] <= side_limits(size).keep:
        return packed
    packed = _opened(folder, resized, files)
    if packed is not None:
        return packed
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    path = folder / f"{resized}.{uuid.uuid4().hex}.tmp"  # a name of its own: two processes may be at it
    note = path.with_suffix(".json.tmp")
    try:
        with path.open("xb") as out, warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\b")  # what matters ends up in `skipped`
            shape, skipped = fill(out, folder, files, size=size, progress=progress)
            out.flush()
            os.fsync(out.fileno())
        note.write_text(json.dumps(skipped))
        key = resized if shape.resized else native
        os.replace(note, folder / f"{key}.json")  # first, so that a store never lacks its list
        os.replace(path, folder / f"{key}.npy")  # whole, or not at all
    finally:
        path.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
    packed = _opened(folder, key, files, fresh=True)
    assert packed is not None
    return packed


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
        except OSError:
            digest.update(b"unreadable")
    native, resized = digest.copy(), digest.copy()
    native.update(b"native")
    resized.update(f"resized for {size}".encode())
    return native.hexdigest(), resized.hexdigest()


def _opened(folder: Path, key: str, files: Files, *, fresh: bool = False) -> Packed | None:
    """The store of this key; None where there is none, or none that can be relied on.

    A file that could not be read may be readable the next time. So a store that lacks one is used only by the
    process that made it, ``fresh``, and under another key.
    """
    try:
        skipped = tuple(Skipped(*pair) for pair in json.loads((folder / f"{key}.json").read_text()))
        pixels = np.load(folder / f"{key}.npy", mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, EOFError, ValueError, TypeError):
        return None
    bad = {name for name, _ in skipped}
    rows = np.array([i for i, entry in enumerate(files.entries) if entry.name not in bad], np.int64)
    if len(rows) != len(pixels):
        return None
    if any(why.startswith(UNREAD) for _, why in skipped):
        if not fresh:
            return None
        key = hashlib.blake2b(key.encode() + rows.tobytes(), digest_size=8).hexdigest()
    return Packed(pixels, rows, skipped, key)


def _remove_leftovers(folder: Path) -> None:
    """Deletes what killed processes left behind; whatever is still being written is younger than a day."""
    for path in folder.glob("*.tmp"):
        try:
            if time.time() - path.stat().st_mtime > DAY:
                path.unlink()
        except FileNotFoundError:  # another process was faster
            pass
