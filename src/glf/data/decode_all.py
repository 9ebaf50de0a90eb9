"""Decodes many image files into one .npy file of uint8 images of one shape, or only to learn which are good."""

import io
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from glf.config.training import Store
from glf.data.decode import SizeLimits, StoredSize, decode_as, needed_shape, quiet, side_limits
from glf.data.files import Entry, Files
from glf.data.images import UNREAD, Skipped
from glf.device import MAX_WORKERS, cores

CHUNK = 32  # files that a thread decodes in one go: enough to make the cost of a hand-over vanish
ROOM = 0.8  # of the free disk that a store may take without being asked for
BAR_FROM = 2000  # files from which on a progress bar is worth its lines


class DecodeResult(NamedTuple):
    """What is known of a set once every file has been decoded."""

    shape: StoredSize
    skipped: list[Skipped]
    stored: bool  # or only looked at


def decode_all(path: Path, files: Files, *, size: int | None, store: Store, progress: bool) -> DecodeResult:
    """Decodes all files, into ``path`` if they are to be stored.

    Begins anew when an image does not have the shape assumed so far. Only images that decode have a say in the
    shape, so a broken file of another size changes nothing; and a set that is of one shape throughout is read
    only once.
    """
    from rich.console import Console  # here, because the command line's help should not wait for it
    from rich.progress import Progress

    count = len(files.entries)
    shape: StoredSize | None = None
    bar = Progress(console=Console(stderr=True), transient=True, disable=not progress or count <= BAR_FROM)
    with bar, quiet():
        task = bar.add_task("", total=count)
        while True:
            path.unlink(missing_ok=True)  # first, because it takes the room that is measured next
            stored = shape is not None and is_stored(path.parent, count * shape.nbytes, store)
            bar.reset(task, description=f"{'decoding' if stored else 'checking'} {files.root.name}")
            with path.open("xb") if stored else nullcontext() as out:
                needed, skipped = _attempt(out, files, shape, side_limits(size), lambda: bar.advance(task))
            if needed == shape:
                return DecodeResult(needed, skipped, stored)
            shape = needed


def is_stored(folder: Path, needed: int, store: Store) -> bool:
    """Whether so many bytes of pixels are to be written there; an error where they must be and do not fit."""
    if store == "decode":
        return False
    free = shutil.disk_usage(folder).free
    if store == "auto":
        return needed <= ROOM * free
    if needed > free:
        raise OSError(
            f"the decoded images need {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: "
            "make room there, ask for a smaller size, set GLF_CACHE to a folder on another disk, "
            "or leave them to be decoded at every epoch (--store decode)"
        )
    return True


def _attempt(
    out: BinaryIO | None, files: Files, shape: StoredSize | None, limits: SizeLimits, advance: Callable[[], None]
) -> tuple[StoredSize, list[Skipped]]:
    """Writes all images as ``shape``; stops early at one that needs another, and returns that instead."""
    count, skipped = len(files.entries), list[Skipped]()
    if out is not None and shape is not None:
        out.write(_header(count, shape))
    with closing(decoded(files, files.entries, shape, limits)) as results:  # ends the threads, however this loop ends
        for result in results:
            advance()
            if isinstance(result, StoredSize):
                return result, []
            if isinstance(result, bytes):
                if out is not None:
                    out.write(result)
                continue
            skipped.append(result)
            if 2 * len(skipped) > count:
                some = "".join(f"\n  {one.line(': ')}" for one in skipped[:5])
                raise ValueError(f"more than half of the {count} image files in {files.root} are bad:{some}")
    assert shape is not None  # the first good image would have given one, and without any we have raised
    if out is not None:
        out.seek(0)
        out.write(_header(count - len(skipped), shape))  # now that it is known how many there are
        out.flush()
        os.fsync(out.fileno())
    return shape, skipped


def decoded(
    files: Files, entries: Sequence[Entry], shape: StoredSize | None, limits: SizeLimits
) -> Generator[bytes | Skipped | StoredSize, None, None]:
    """For each entry, in order, its pixels as ``shape`` has them or why it is skipped; by several threads.

    An image that needs another shape gives that instead, and what comes after it counts for nothing.
    """
    return _in_order(lambda some: _decoded(files, some, shape, limits), entries)


def _decoded(
    files: Files, entries: Sequence[Entry], shape: StoredSize | None, limits: SizeLimits
) -> list[bytes | Skipped | StoredSize]:
    """The pixels of each file or why it is skipped; ends at the first image that needs another shape."""
    results: list[bytes | Skipped | StoredSize] = []
    for entry in entries:
        try:
            data = files.read(entry)
            files.check_unchanged(entry)
        except OSError as error:
            results.append(Skipped(entry.name, UNREAD + (error.strerror or str(error))))
            continue
        except ValueError as error:
            results.append(Skipped(entry.name, str(error)))
            continue
        try:
            pixels = decode_as(data, shape, limits)
        except Exception as error:  # PIL's plugins raise almost anything on a broken file
            results.append(Skipped(entry.name, str(error) or type(error).__name__))
            continue
        needed = needed_shape(pixels, shape, limits)
        if needed != shape:
            return [*results, needed]
        results.append(np.broadcast_to(pixels, (needed.side, needed.side, needed.channels)).tobytes())
    return results


def _in_order(
    work: Callable[[Sequence[Entry]], list[bytes | Skipped | StoredSize]], entries: Sequence[Entry]
) -> Generator[bytes | Skipped | StoredSize, None, None]:
    """The results of ``work`` on chunks of the entries by several threads, few of them waiting at any time.

    (The executor's own ``map`` takes all the work at once and would hold the whole data set in memory.)
    """
    threads = min(MAX_WORKERS, cores())
    waiting: deque[Future[list[bytes | Skipped | StoredSize]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for start in range(0, len(entries), CHUNK):
            waiting.append(pool.submit(work, entries[start : start + CHUNK]))
            if len(waiting) > 2 * threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _header(count: int, shape: StoredSize) -> bytes:
    """The beginning of an .npy file; numpy pads it, so that its length does not depend on the count."""
    header = io.BytesIO()
    sizes = (count, shape.side, shape.side, shape.channels)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": sizes})
    assert header.tell() == 128
    return header.getvalue()
