"""Small arrays are read into memory; large ones stay mapped, and go to another process by their file's name."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

IN_MEMORY = 2**30  # bytes up to which a mapped array is read: some 5,000 photos at 256 px, 38,000 at 96


class MappedFile(NamedTuple):
    """Where a mapped array lies in a file."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str


def resident(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A mapped array read into memory if it is small, read-only like the file; any other as it is.

    Random rows of a mapped array cost a page fault each, and on a network's disk a round trip, at every epoch.
    """
    if not isinstance(pixels, np.memmap) or pixels.nbytes > IN_MEMORY:
        return pixels
    read = np.array(pixels)
    read.flags.writeable = False
    return read


def by_name(value: Any) -> Any:
    """A mapped array as the place of its file, to be sent to another process; anything else as it is.

    Pickled as it is, a memory-mapped array would be read and sent whole, once for every worker.
    """
    if not isinstance(value, np.memmap) or value.filename is None or not value.flags.c_contiguous:
        return value
    whole: Any = value
    while isinstance(whole.base, np.ndarray):  # a part of a mapped array still says where the whole begins
        whole = whole.base
    skipped = value.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return MappedFile(str(value.filename), value.offset + skipped, value.shape, value.dtype.str)


def opened(value: Any) -> Any:
    """What ``by_name`` was given."""
    if not isinstance(value, MappedFile):
        return value
    return np.memmap(value.path, dtype=value.dtype, mode="r", offset=value.offset, shape=value.shape)
