"""Decode all images of a source, in order and by several threads: into one .npy file, or only to find the bad ones."""

import io
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from glf import ui
from glf.config.bounds import MAX_WORKERS
from glf.config.training import Store
from glf.data.decode import SizeLimits, StoredSize, decode_alone, decode_as, needed_shape, quiet, side_limits
from glf.data.source import UNREAD, Skipped, Source
from glf.device import cores

CHUNK = 32  # images that a thread decodes in one go, so that handing them over costs little
MAX_DISK_SHARE = 0.8  # of the free disk that the cache takes unless told to
BAR_FROM = 2000  # images above which a progress bar is shown

Decoded = NDArray[np.uint8] | Skipped | StoredSize
T = TypeVar("T")
R = TypeVar("R")


class DecodeResult(NamedTuple):
    """What is known of a source once every image has been decoded."""

    shape: StoredSize
    skipped: list[Skipped]
    stored: bool  # False if the images were only checked


def decode_all(path: Path, source: Source, *, size: int | None, store: Store, progress: bool) -> DecodeResult:
    """Decode all images, and write them to ``path`` if they are to be stored.

    Starts again when an image does not have the shape assumed so far. Only images that decode affect the shape, so a
    broken file of another size changes nothing. A source of one shape throughout is read only once.
    """
    shape: StoredSize | None = None
    name = Path(str(source)).name
    with ui.progress(show=progress and len(source) > BAR_FROM) as bar, quiet():
        task = bar.add_task("", total=len(source))
        while True:
            path.unlink(missing_ok=True)  # first, because it takes the space that is measured next
            stored = shape is not None and is_stored(path.parent, len(source) * shape.nbytes, store)
            bar.reset(task, description=f"{'decoding' if stored else 'checking'} {name}")
            with path.open("xb") if stored else nullcontext() as out:
                needed, skipped = _attempt(out, source, shape, side_limits(size), lambda: bar.advance(task))
            if needed == shape:
                return DecodeResult(needed, skipped, stored)
            shape = needed


def is_stored(folder: Path, needed: int, store: Store) -> bool:
    """Whether ``needed`` bytes of pixels are written to this folder; OSError if they must be and do not fit."""
    if store == "decode":
        return False
    free = shutil.disk_usage(folder).free
    if store == "auto":
        return needed <= MAX_DISK_SHARE * free
    if needed > free:
        raise OSError(
            f"the decoded images need {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: "
            "free some space, use a smaller size, set GLF_CACHE to a folder on another disk, "
            "or decode the images at every epoch (--store decode)"
        )
    return True


def _attempt(
    out: BinaryIO | None, source: Source, shape: StoredSize | None, limits: SizeLimits, advance: Callable[[], None]
) -> tuple[StoredSize, list[Skipped]]:
    """Write all images as ``shape``. Stop at the first one that needs another shape, and return that instead."""
    skipped = list[Skipped]()
    if out is not None and shape is not None:
        out.write(_header(len(source), shape))
    with closing(decode_stream(source, shape, limits)) as images:  # ends the threads, however this loop ends
        for image in images:
            advance()
            if isinstance(image, StoredSize):
                return image, []
            if isinstance(image, Skipped):
                skipped.append(image)
                check_share_of_bad(skipped, source)
            elif out is not None:
                out.write(image.data)
    assert shape is not None  # the first good image gives one, and without any good image an error was raised
    if out is not None:
        out.seek(0)
        out.write(_header(len(source) - len(skipped), shape))  # now that the number of good images is known
        out.flush()
        os.fsync(out.fileno())
    return shape, skipped


def check_share_of_bad(skipped: list[Skipped], source: Source) -> None:
    """Raise ValueError if more than half of the images are bad: then something else is wrong."""
    if 2 * len(skipped) > len(source):
        some = "; ".join(one.line(": ") for one in skipped[:3])
        raise ValueError(
            f"more than half of the {len(source)} image files in {source} are bad: look at these first: {some}"
        )


def decode_stream(source: Source, shape: StoredSize | None, limits: SizeLimits) -> Generator[Decoded, None, None]:
    """Yield, in order, the pixels of each image or why it is skipped; few images are in memory.

    Yields a new shape for an image that does not fit ``shape``; whatever follows that is to be ignored.
    """

    def fitted(i: int) -> Decoded:
        pixels = _decoded(source, i, lambda data: decode_as(data, shape, limits))
        if isinstance(pixels, Skipped):
            return pixels
        needed = needed_shape(pixels, shape, limits)
        if needed != shape:
            return needed
        return np.ascontiguousarray(np.broadcast_to(pixels, (needed.side, needed.side, needed.channels)))

    return in_threads(fitted, range(len(source)), last=lambda result: isinstance(result, StoredSize))


def decode_each(
    source: Source, indices: range, limits: SizeLimits
) -> Generator[NDArray[np.uint8] | Skipped, None, None]:
    """Yield the pixels of some images, or why they are skipped. An image's side does not depend on the others."""
    if source.pixels is not None:
        yield from source.pixels[indices.start : indices.stop]
    else:
        yield from in_threads(lambda i: _decoded(source, i, lambda data: decode_alone(data, limits)), indices)


def in_threads(
    work: Callable[[T], R], items: Iterable[T], last: Callable[[R], bool] = lambda result: False
) -> Generator[R, None, None]:
    """Yield the result of each item, in order; few items and results are in memory.

    After a result that is the ``last``, items may be left out.
    """

    def work_on(chunk: list[T]) -> list[R]:
        results = list[R]()
        for item in chunk:
            results.append(work(item))
            if last(results[-1]):
                break
        return results

    # ThreadPoolExecutor.map would submit everything at once and hold the whole data set in memory.
    threads = min(MAX_WORKERS, cores())
    waiting: deque[Future[list[R]]] = deque()
    pool, remaining = ThreadPoolExecutor(threads), iter(items)
    try:
        while chunk := list(islice(remaining, CHUNK)):
            waiting.append(pool.submit(work_on, chunk))
            if len(waiting) > 2 * threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _decoded(source: Source, i: int, decoder: Callable[[bytes], NDArray[np.uint8]]) -> NDArray[np.uint8] | Skipped:
    try:
        data = source.read(i)
        source.check_unchanged(i)
    except OSError as error:
        return Skipped(source.name(i), UNREAD + (error.strerror or str(error)))
    except ValueError as error:
        return Skipped(source.name(i), str(error))
    try:
        return decoder(data)
    except Exception as error:  # PIL's plugins raise almost anything on a broken file
        return Skipped(source.name(i), str(error) or type(error).__name__)


def _header(count: int, shape: StoredSize) -> bytes:
    """Return the header of an .npy file; numpy pads it, so its length does not depend on the count."""
    header = io.BytesIO()
    sizes = (count, shape.side, shape.side, shape.channels)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": sizes})
    assert header.tell() == 128
    return header.getvalue()
