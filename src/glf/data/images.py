"""A loaded data set: uint8 images of one size with their targets, in memory, memory-mapped or decoded on read."""

import hashlib
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from glf.config.bounds import MAX_WORKERS
from glf.config.training import PretrainConfig
from glf.data.decode import StoredSize, decode_as, quiet
from glf.data.source import Skipped, Source
from glf.device import cores
from glf.files import printable

SHARE = 8  # images that make it worth starting a thread
IN_MEMORY = 2**30  # bytes up to which a memory-mapped array is read: some 5,000 photos at 256 px, 38,000 at 96

Storage = Literal["in memory", "memory-mapped", "decoded", "streamed"]


class WorkerError(OSError):
    """A problem with the data, for the user to read.

    If a worker process raises it, torch makes a new exception of this class from the worker's whole traceback. Only
    the line for the user is kept.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].rstrip())


class ChangedFile(WorkerError):  # noqa: N818 (named after what happened)
    """A file that was a good image when the data were checked, and no longer is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodeOnRead:
    """Images that are decoded whenever they are read; ``pixels[indices]`` is that of the cached array, bit for bit."""

    source: Source
    indices: NDArray[np.int64]  # of each image in the source
    form: StoredSize

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.indices), self.form.side, self.form.side, self.form.channels

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        return np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        return 4

    @property
    def nbytes(self) -> int:
        """Bytes that all images would take in memory."""
        return len(self.indices) * self.form.nbytes

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, indices: NDArray[np.int64] | slice) -> "DecodeOnRead":
        """Return some of the images, without decoding any."""
        return replace(self, indices=self.indices[indices])

    def read(self, i: int) -> bytes:
        """Return the file of image ``i``; ChangedFile if it was modified."""
        index = int(self.indices[i])
        try:
            data = self.source.read(index)
            self.source.check_unchanged(index)
        except OSError as error:
            raise self._changed(index, str(error)) from None
        return data

    def name(self, i: int) -> str:
        """Return the name of image ``i``."""
        return self.source.name(int(self.indices[i]))

    def __getitem__(self, indices: Any) -> NDArray[np.uint8]:
        """Decode some images; ``indices`` is anything that numpy takes as the index of one dimension."""
        if isinstance(indices, tuple):
            raise TypeError(f"images that are decoded on read have one index, not {indices!r}")
        found = np.asarray(self.indices[indices])
        flat = found.reshape(-1)
        out = np.empty((len(flat), *self.shape[1:]), np.uint8)
        # Workers of a loader share the cores already; the main process has them all when it decodes itself.
        threads = min(MAX_WORKERS, cores()) if multiprocessing.parent_process() is None else 1
        parts = np.array_split(np.arange(len(flat)), max(1, min(threads, len(flat) // SHARE)))
        with quiet():
            if len(parts) == 1:
                self._decode(flat, out)
            else:
                with ThreadPoolExecutor(len(parts)) as pool:
                    list(pool.map(lambda part: self._decode(flat[part], out[part[0] : part[-1] + 1]), parts))
        return out.reshape(found.shape + self.shape[1:])

    def _decode(self, indices: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        for index, pixels in zip(indices.tolist(), out, strict=True):
            try:
                pixels[:] = decode_as(self.source.read(index), self.form)  # grey fills all channels
            except Exception as error:  # PIL's plugins raise almost anything on a broken file
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise self._changed(index, why) from None

    def _changed(self, index: int, why: str) -> ChangedFile:
        path = printable(self.source.path(index))
        return ChangedFile(f"{path} was an image when the data were checked and no longer is: {why}")


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images of one size. ``pixels`` has a shape and ``pixels[indices]``, wherever the pixels are stored.

    Equality is identity: arrays have no single truth value, and ``key`` already tells whether two sets have the same
    pixels in the same order.
    """

    name: str  # as given by the user
    pixels: NDArray[np.uint8] | DecodeOnRead  # (image, height, width, channel), one or three channels
    targets: NDArray[np.int64]  # (image,), -1 for images without a label
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
        """Whether every image has a label and there are at least two classes."""
        return len(self.classes) > 1 and bool((self.targets >= 0).all())

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[3])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.pixels.shape[1]), int(self.pixels.shape[2])

    @property
    def bytes_per_image(self) -> int:
        return int(self.pixels.nbytes) // max(1, len(self))

    @property
    def storage(self) -> Storage:
        """Where the pixels are stored, on which the number of workers depends."""
        if isinstance(self.pixels, np.ndarray):
            return "memory-mapped" if isinstance(self.pixels, np.memmap) else "in memory"
        return "decoded"

    def select(self, indices: NDArray[np.integer] | NDArray[np.bool_]) -> "ImageSet":
        """Return some of the images, in the order of ``indices``, or those where a boolean mask is true.

        Consecutive images remain a view of a memory-mapped array, any others are copied into memory. Images that are
        decoded on read remain so.
        """
        indices = np.asarray(indices)
        if indices.dtype == np.bool_ and indices.shape == (len(self),):
            indices = np.flatnonzero(indices)
        if indices.ndim != 1 or not (np.issubdtype(indices.dtype, np.integer) or indices.size == 0):
            raise ValueError(f"indices must be one-dimensional integers, got {indices.dtype} {indices.shape}")
        if indices.size and not 0 <= indices.min() <= indices.max() < len(self):
            raise ValueError(f"indices must be in 0..{len(self) - 1}, got {indices.min()}..{indices.max()}")
        indices = indices.astype(np.int64)
        consecutive = indices.size > 0 and bool((np.diff(indices) == 1).all())
        where = slice(int(indices[0]), int(indices[-1]) + 1) if consecutive else indices
        digest = hashlib.blake2b(self.key.encode() + indices.astype("<i8").tobytes(), digest_size=8)
        pixels = self.pixels[where] if isinstance(self.pixels, np.ndarray) else self.pixels.select(where)
        return replace(self, pixels=pixels, targets=self.targets[where], key=digest.hexdigest())


def to_memory(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Read a small memory-mapped array into memory, read-only like the file; return any other array as it is.

    Random access to a mapped array costs a page fault per image, on a network disk a round trip, at every epoch.
    """
    if not isinstance(pixels, np.memmap) or pixels.nbytes > IN_MEMORY:
        return pixels
    read = np.array(pixels)
    read.flags.writeable = False
    return read


def stratified_sample(targets: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return ``count`` indices, sorted, drawn by the seed, with every class in proportion as far as possible.

    >>> stratified_sample(np.array([0, 0, 0, 0, 1, 1]), 3, seed=0).size
    3
    """
    if not 0 <= count <= len(targets):
        raise ValueError(f"cannot draw {count} of {len(targets)} images")
    order = np.random.default_rng([seed, 7]).permutation(len(targets))
    # Sorted by each image's position within its class, as a fraction: a prefix has every class in proportion.
    _, inverse, sizes = np.unique(targets[order], return_inverse=True, return_counts=True)
    position = np.empty(len(order))
    for label, size in enumerate(sizes):
        position[inverse == label] = (np.arange(size) + 0.5) / size
    return np.sort(order[np.argsort(position, kind="stable")[:count]])


def statistics(images: ImageSet, sample: int = 2_000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in [0, 1] over a sample: from histograms, without a float copy."""
    pixels = images.pixels[stratified_sample(images.targets, min(len(images), sample), seed=0)]
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.channels):
        share = np.bincount(pixels[..., channel].ravel(), minlength=256) / pixels[..., channel].size
        mean = float(share @ values)
        means.append(round(mean, 4))
        deviations.append(round(max(float(share @ (values - mean) ** 2) ** 0.5, 1e-3), 4))  # never zero
    return tuple(means), tuple(deviations)


def default_held_out(count: int) -> int:
    """Number of images held out of training, if none is given: a tenth, at most 5,000."""
    return min(count // 10, 5_000)


def split_held_out(images: ImageSet, config: PretrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of training images and of those held out for the probe: fixed by the seed, stratified."""
    indices = np.arange(len(images))
    if config.max_images is not None:
        indices = stratified_sample(images.targets, config.max_images, config.seed)
    count = config.val_images
    if count is None:
        count = default_held_out(len(indices)) if images.labelled else 0
    val = indices[stratified_sample(images.targets[indices], count, config.seed + 1)]
    return np.setdiff1d(indices, val), val
