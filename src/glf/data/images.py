"""What a loaded data set is: uint8 images of one size with their targets, in memory, mapped or decoded on demand."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from glf.config.training import PretrainConfig
from glf.files import printable

BLOCK = 1024  # images hashed at a time, so that a memory-mapped array never has to fit in memory


Storage = Literal["in memory", "memory-mapped", "decoded", "streamed"]


class WorkerError(OSError):
    """What is wrong with the data, for the user to read.

    Where a worker process raises it, torch makes a new exception of this class from the worker's whole traceback.
    Of that, only the line meant for the user is kept.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].rstrip())


class MissingSplit(LookupError):  # noqa: N818 (a fact about the data, not always an error)
    """The source has no such split; the message says which ones it has."""


UNREAD = "cannot be read: "  # begins the reason of a file that failed before it could be decoded


class Skipped(NamedTuple):
    """A file that is no part of the data set because it could not be decoded, or a folder that could not be entered."""

    name: str
    why: str

    def line(self, between: str = "\t") -> str:
        r"""Both in a line that nothing in them can break; a backslash in the name is doubled, so that it can be undone.

        >>> print(Skipped("a\nb.jpg", "empty file").line(": "))
        a\nb.jpg: empty file
        """
        return printable(self.name.replace("\\", "\\\\")) + between + printable(self.why)


@runtime_checkable
class LazyPixels(Protocol):
    """Images that become pixels when they are asked for. An array has all of this but ``select``."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[np.uint8]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Any) -> NDArray[np.uint8]: ...

    def select(self, rows: NDArray[np.int64] | slice) -> "LazyPixels":
        """The images of these rows, still lazy."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images of one size. Of ``pixels`` one may rely on a shape and on ``pixels[rows]``, wherever they live.

    Equality is identity: two arrays have no single truth value, and ``key`` already says whether two sets
    hold the same pixels in the same order.
    """

    name: str  # what the user asked for
    pixels: NDArray[np.uint8] | LazyPixels  # (image, height, width, channel), one or three channels
    targets: NDArray[np.int64]  # (image,), -1 where there is no label
    classes: tuple[str, ...]  # empty when unlabelled
    key: str  # 16 hex digits that change whenever the pixels or their order change
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[-1] not in (1, 3):
            raise ValueError(
                "pixels must be uint8 (image, height, width, channel) with one or three channels, "
                f"got {self.pixels.dtype} {self.pixels.shape}"
            )
        if self.targets.dtype != np.int64 or self.targets.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"targets must be int64 ({len(self.pixels)},), got {self.targets.dtype} {self.targets.shape}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def labelled(self) -> bool:
        """Whether every image has a label, and there is more than one class to tell apart."""
        return len(self.classes) > 1 and bool((self.targets >= 0).all())

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[3])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.pixels.shape[1]), int(self.pixels.shape[2])

    @property
    def storage(self) -> Storage:
        """Where the pixels come from, which decides who should read them."""
        if isinstance(self.pixels, np.ndarray):
            return "memory-mapped" if isinstance(self.pixels, np.memmap) else "in memory"
        return "decoded"

    def select(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> "ImageSet":
        """The images of these rows, in the order of ``rows``; a mask selects where it is true.

        Consecutive rows stay a view of a memory-mapped array, and any others are copied into memory. Images that
        are decoded on demand stay so.
        """
        rows = np.asarray(rows)
        if rows.dtype == np.bool_ and rows.shape == (len(self),):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or not (np.issubdtype(rows.dtype, np.integer) or rows.size == 0):
            raise ValueError(f"rows must be one-dimensional integers, got {rows.dtype} {rows.shape}")
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise ValueError(f"rows must be in 0..{len(self) - 1}, got {rows.min()}..{rows.max()}")
        rows = rows.astype(np.int64)
        consecutive = rows.size > 0 and bool((np.diff(rows) == 1).all())
        where = slice(int(rows[0]), int(rows[-1]) + 1) if consecutive else rows
        digest = hashlib.blake2b(self.key.encode() + rows.astype("<i8").tobytes(), digest_size=8)
        pixels = self.pixels[where] if isinstance(self.pixels, np.ndarray) else self.pixels.select(where)
        return replace(self, pixels=pixels, targets=self.targets[where], key=digest.hexdigest())


def array_key(pixels: NDArray[np.uint8]) -> str:
    """The key of an array source: a hash of its shape and of all its bytes."""
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=8)
    for start in range(0, len(pixels), BLOCK):
        digest.update(np.ascontiguousarray(pixels[start : start + BLOCK]).data)
    return digest.hexdigest()


def bytes_per_image(images: ImageSet) -> int:
    return int(images.pixels.nbytes) // max(1, len(images))


def stratified_sample(targets: np.ndarray, count: int, seed: int) -> np.ndarray:
    """So many rows, sorted, drawn by the seed, every class in proportion as far as whole images allow.

    >>> draw(np.array([0, 0, 0, 0, 1, 1]), 3, seed=0).size
    3
    """
    if not 0 <= count <= len(targets):
        raise ValueError(f"cannot draw {count} of {len(targets)} images")
    order = np.random.default_rng([seed, 7]).permutation(len(targets))
    # Sorted by each image's place within its class, as a fraction: a prefix holds every class in proportion.
    _, inverse, sizes = np.unique(targets[order], return_inverse=True, return_counts=True)
    place = np.empty(len(order))
    for label, size in enumerate(sizes):
        place[inverse == label] = (np.arange(size) + 0.5) / size
    return np.sort(order[np.argsort(place, kind="stable")[:count]])


def statistics(images: ImageSet, sample: int = 2_000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in [0, 1], over some images: from counts, without a float copy."""
    pixels = images.pixels[stratified_sample(images.targets, min(len(images), sample), seed=0)]
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.channels):
        share = np.bincount(pixels[..., channel].ravel(), minlength=256) / pixels[..., channel].size
        mean = float(share @ values)
        means.append(round(mean, 4))
        deviations.append(round(max(float(share @ (values - mean) ** 2) ** 0.5, 1e-3), 4))  # never zero
    return tuple(means), tuple(deviations)


def split_held_out(images: ImageSet, config: PretrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """Training rows, and rows held out of them for the probe: fixed by the seed, classes in proportion."""
    rows = np.arange(len(images))
    if config.max_images is not None:
        rows = stratified_sample(images.targets, config.max_images, config.seed)
    count = config.val_images
    if count is None:
        count = min(len(rows) // 10, 5_000) if images.labelled else 0
    val = rows[stratified_sample(images.targets[rows], count, config.seed + 1)]
    return np.setdiff1d(rows, val), val


IN_MEMORY = 2**30  # bytes up to which a mapped array is read: some 5,000 photos at 256 px, 38,000 at 96


class MappedFile(NamedTuple):
    """Where a mapped array lies in a file."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str


def to_memory(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A mapped array read into memory if it is small, read-only like the file; any other as it is.

    Random rows of a mapped array cost a page fault each, and on a network's disk a round trip, at every epoch.
    """
    if not isinstance(pixels, np.memmap) or pixels.nbytes > IN_MEMORY:
        return pixels
    read = np.array(pixels)
    read.flags.writeable = False
    return read


def memmap_handle(value: Any) -> Any:
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


def open_memmap(value: Any) -> Any:
    """What ``by_name`` was given."""
    if not isinstance(value, MappedFile):
        return value
    return np.memmap(value.path, dtype=value.dtype, mode="r", offset=value.offset, shape=value.shape)
