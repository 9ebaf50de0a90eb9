"""Decodes many image files into one .npy file of uint8 images of one shape."""

import io
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.data.decode import decode
from glf.data.files import Entry, Files
from glf.data.store import Skipped

CHUNK = 32  # files that a thread decodes in one go: enough to make the cost of a hand-over vanish
BAR_FROM = 2000  # files from which on a progress bar is worth its lines
UNREAD = "cannot be read: "  # begins the reason of a file that failed before it could be decoded


class Shape(NamedTuple):
    """What every image is brought to."""

    side: int
    channels: int
    resized: bool  # or all images have this side by themselves


class Limits(NamedTuple):
    keep: int  # images of one square size up to this are kept as they are
    full: int  # any others are resized to this


def side_limits(size: int | None) -> Limits:
    """What the crop that training wants means for the stored images: a margin of 8/7, as 256 is to 224.

    >>> side_limits(32), side_limits(None)
    (Limits(keep=37, full=37), Limits(keep=96, full=256))
    """
    full = round((224 if size is None else size) * 8 / 7)
    return Limits(96 if size is None else full, full)


def fill(out: BinaryIO, folder: Path, files: Files, *, size: int | None, progress: bool) -> tuple[Shape, list[Skipped]]:
    """Decodes all files into ``out``; begins anew when an image does not have the shape assumed so far.

    Only images that decode have a say in the shape, so a broken file of another size changes nothing; and a
    set that is of one shape throughout is read only once.
    """
    from rich.console import Console  # here, because the command line's help should not wait for it
    from rich.progress import Progress

    count = len(files.entries)
    shape: Shape | None = None
    bar = Progress(console=Console(stderr=True), transient=True, disable=not progress or count <= BAR_FROM)
    with bar:
        task = bar.add_task(f"decoding {files.root.name}", total=count)
        while True:
            bar.reset(task)
            if shape is not None:
                _check_room(folder, count * shape.side**2 * shape.channels)
            needed, skipped = _attempt(out, files, shape, side_limits(size), lambda: bar.advance(task))
            if needed == shape:
                return needed, skipped
            shape = needed


def _attempt(
    out: BinaryIO, files: Files, shape: Shape | None, limits: Limits, advance: Callable[[], None]
) -> tuple[Shape, list[Skipped]]:
    """Writes all images as ``shape``; stops early at one that needs another, and returns that instead."""
    count, skipped = len(files.entries), list[Skipped]()
    out.seek(0)
    out.truncate()
    if shape is not None:
        out.write(_header(count, shape))
    results = _in_order(lambda entries: _decoded(files, entries, shape, limits), files.entries)
    with closing(results):  # ends the threads, however this loop ends
        for result in results:
            advance()
            if isinstance(result, Shape):
                return result, []
            if isinstance(result, bytes):
                out.write(result)
                continue
            skipped.append(result)
            if 2 * len(skipped) > count:
                some = "".join(f"\n  {name}: {why}" for name, why in skipped[:5])
                raise ValueError(f"more than half of the {count} image files in {files.root} are bad:{some}")
    assert shape is not None  # the first good image would have given one, and without any we have raised
    if skipped:  # the header said that there would be more images
        out.seek(0)
        out.write(_header(count - len(skipped), shape))
    return shape, skipped


def _decoded(
    files: Files, entries: Sequence[Entry], shape: Shape | None, limits: Limits
) -> list[bytes | Skipped | Shape]:
    """The pixels of each file or why it is skipped; ends at the first image that needs another shape."""
    results: list[bytes | Skipped | Shape] = []
    for entry in entries:
        try:
            data = files.read(entry)
        except OSError as error:
            results.append(Skipped(entry.name, UNREAD + (error.strerror or str(error))))
            continue
        try:
            pixels = decode(data, side=shape.side if shape is not None and shape.resized else None)
        except Exception as error:  # PIL's plugins raise almost anything on a broken file
            results.append(Skipped(entry.name, str(error) or type(error).__name__))
            continue
        needed = _needed(pixels, shape, limits)
        if needed != shape:
            return [*results, needed]
        results.append(np.broadcast_to(pixels, (needed.side, needed.side, needed.channels)).tobytes())
    return results


def _needed(pixels: NDArray[np.uint8], shape: Shape | None, limits: Limits) -> Shape:
    """The shape for all images so far, which had ``shape``, and this one, decoded like them."""
    height, width, channels = pixels.shape
    if shape is None:
        kept = height == width <= limits.keep
        return Shape(height if kept else limits.full, channels, not kept)
    kept = height == width == shape.side and not shape.resized
    return Shape(height if kept else limits.full, max(channels, shape.channels), not kept)


def _in_order(
    work: Callable[[Sequence[Entry]], list[bytes | Skipped | Shape]], entries: Sequence[Entry]
) -> Generator[bytes | Skipped | Shape, None, None]:
    """The results of ``work`` on chunks of the entries by several threads, few of them waiting at any time.

    (The executor's own ``map`` takes all the work at once and would hold the whole data set in memory.)
    """
    threads = min(16, os.cpu_count() or 1)
    waiting: deque[Future[list[bytes | Skipped | Shape]]] = deque()
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


def _header(count: int, shape: Shape) -> bytes:
    """The beginning of an .npy file; numpy pads it, so that its length does not depend on the count."""
    header = io.BytesIO()
    sizes = (count, shape.side, shape.side, shape.channels)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": sizes})
    assert header.tell() == 128
    return header.getvalue()


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"the decoded images need {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: "
            "make room there, ask for a smaller size, or set GLF_CACHE to a folder on another disk"
        )
