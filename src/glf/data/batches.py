"""Batches of an image set: which images in which order, read by how many worker processes."""

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from glf.config.bounds import MAX_WORKERS
from glf.data.images import ImageSet, Storage
from glf.data.shards.fetch import end_programs, forget_programs
from glf.device import cores
from glf.types import Batch


class EpochBatches(Sampler[np.ndarray]):
    """Batches of one epoch: a permutation that depends on seed and epoch only, so that a run can be resumed.

    The global batch does not depend on the number of processes: each takes a part of it, in the order of their ranks,
    so that gathered batches have the order of one process. The last, incomplete batch of an epoch is dropped: batch
    statistics should not depend on a remainder.
    """

    def __init__(self, indices: np.ndarray, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        if batch_size > len(indices):
            raise ValueError(
                f"a batch of {batch_size} is larger than the data ({len(indices)} training images): lower --batch-size"
            )
        if batch_size % world:
            raise ValueError(f"a global batch of {batch_size} cannot be shared by {world} processes")
        self.indices, self.batch_size, self.seed, self.rank, self.world = indices, batch_size, seed, rank, world
        self.epoch = 0
        self.first = (0, 0)  # an epoch and its first batch

    def begin(self, epoch: int, batch: int) -> None:
        """Resume in this epoch with this batch; later epochs begin with their first."""
        self.epoch, self.first = epoch, (epoch, batch)

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.indices) // self.batch_size

    def __iter__(self) -> Iterator[np.ndarray]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.indices)
        own = self.batch_size // self.world
        for batch in range(self.first[1] if self.epoch == self.first[0] else 0, len(self)):
            start = batch * self.batch_size + self.rank * own
            yield order[start : start + own]


class BatchReader(Dataset[Batch]):
    """Reads a whole batch at a time: indexing an array once is faster than collating its images one by one."""

    def __init__(self, images: ImageSet, prior: np.ndarray | None = None) -> None:
        if prior is not None and len(prior) != len(images):
            raise ValueError(f"the prior has features of {len(prior)} images, the data {len(images)} images")
        self.images, self.prior = images, prior

    def __getstate__(self) -> dict[str, Any]:
        """Pickle memory-mapped arrays as handles, for workers that are spawned (everywhere but on Linux)."""
        images = {name: memmap_handle(value) for name, value in vars(self.images).items()}
        return {"images": images, "prior": memmap_handle(self.prior)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.images = ImageSet(**{name: open_memmap(value) for name, value in state["images"].items()})
        self.prior = open_memmap(state["prior"])

    def __getitem__(self, indices: np.ndarray) -> Batch:
        return Batch(
            images=to_tensor(self.images.pixels[indices]),
            target=torch.from_numpy(self.images.targets[indices]),
            indices=torch.from_numpy(indices),
            prior=None if self.prior is None else torch.from_numpy(np.ascontiguousarray(self.prior[indices])),
        )


def to_tensor(
    pixels: UInt8[np.ndarray, "batch height width channel"],
) -> UInt8[Tensor, "batch channel height width"]:
    """Return the same bytes as a tensor in torch's channels-last layout, which convolutions prefer."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)


class MappedFile(NamedTuple):
    """Where a memory-mapped array is in its file."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str


def memmap_handle(value: Any) -> Any:
    """Return a memory-mapped array as the place of its file, to be sent to another process; anything else unchanged.

    Pickling the array itself would read and send all of it, once per worker.
    """
    if not isinstance(value, np.memmap) or value.filename is None or not value.flags.c_contiguous:
        return value
    whole: Any = value
    while isinstance(whole.base, np.ndarray):  # a slice of a mapped array has the offset of the whole array
        whole = whole.base
    skipped = value.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return MappedFile(str(value.filename), value.offset + skipped, value.shape, value.dtype.str)


def open_memmap(value: Any) -> Any:
    """Invert ``memmap_handle``."""
    if not isinstance(value, MappedFile):
        return value
    return np.memmap(value.path, dtype=value.dtype, mode="r", offset=value.offset, shape=value.shape)


def image_loader(
    images: ImageSet, batches: EpochBatches, *, prior: np.ndarray | None, workers: int = 0, pin: bool = False
) -> DataLoader[Batch]:
    """Return a loader of raw pixels, with the prior's features of each image if there are any."""
    batch_bytes = batches.batch_size // batches.world * images.bytes_per_image
    return whole_batch_loader(BatchReader(images, prior), batches, batch_bytes=batch_bytes, workers=workers, pin=pin)


def whole_batch_loader(
    dataset: Dataset[Batch], sampler: Sampler[Any], *, batch_bytes: int, workers: int, pin: bool
) -> DataLoader[Batch]:
    """Return a loader of a dataset whose items are whole batches.

    A worker prepares up to four batches ahead, fewer if they are large: a container's shared memory is often small, and
    more waiting batches do not help. (torch gives each worker one thread.)
    """
    ahead = max(1, min(4, shared_memory() // max(1, workers * batch_bytes)))
    return BatchLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin,
        persistent_workers=workers > 0,
        prefetch_factor=ahead if workers else None,
    )


class BatchLoader(DataLoader[Batch]):
    """A loader that says whether somebody waits for it, and whose workers end when they are told to."""

    def __init__(self, dataset: Dataset[Batch], **options: Any) -> None:
        self.waiting = False  # True while a batch is being waited for: training is between two steps
        told, self._tell = multiprocessing.Pipe(duplex=False)
        super().__init__(dataset, worker_init_fn=partial(begin_worker, told), **options)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        return _Waiting(self, super().__iter__())

    def end_workers(self) -> None:
        """End the workers within a second, even those that wait for a server; torch would wait five for each."""
        self._tell.send_bytes(b"end")


class _Waiting(Iterator[Batch]):
    def __init__(self, loader: BatchLoader, batches: Iterator[Batch]) -> None:
        self.loader, self.batches = loader, batches

    def __next__(self) -> Batch:
        self.loader.waiting = True
        try:
            return next(self.batches)
        finally:
            self.loader.waiting = False


def begin_worker(told: Connection, worker: int) -> None:
    """Prepare a worker process: it lives as long as the training process, and no longer.

    It ignores Ctrl-C and SIGTERM, which reach all processes of a group: the training process saves its state first.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    forget_programs()
    Finalize(None, end_programs, exitpriority=1)
    threading.Thread(target=_end_with_training, args=(told,), daemon=True).start()


def _end_with_training(told: Connection) -> None:
    """End this process when it is told to or its parent has ended, even in the middle of reading."""
    parent = multiprocessing.parent_process()
    while not told.poll(0.5):
        if parent is not None and not (parent.is_alive() and os.getppid() == parent.pid):
            break
    end_programs()
    os._exit(0)  # torch takes any other code for a crash


@runtime_checkable
class Stored(Protocol):
    """Anything that says where its images are stored: an image set or a stream of shards."""

    @property
    def storage(self) -> Storage: ...


def shared_memory() -> int:
    """Return the bytes of shared memory that batches may take: half of the free ones (a container often has 64 MB)."""
    try:
        return min(2 * 2**30, shutil.disk_usage("/dev/shm").free // 2)
    except OSError:  # macOS and Windows share memory by other means
        return 2 * 2**30


def worker_count(images: Stored, given: int | None, *, gpu: bool, processes: int = 1, batch_bytes: int = 0) -> int:
    """Return the number of worker processes: as given, or what suits the storage of the images.

    Images in memory need none: indexing is faster than handing over from another process. Memory-mapped images may
    come from the disk: a GPU should not wait for that, while training on a CPU leaves no core to spare. Decoding takes
    all cores of this process, shared with the other processes of the node. There are no more workers than batches that
    fit into shared memory.
    """
    if given is not None:
        if given < 0:
            raise ValueError(f"workers must be 0 or more, got {given}")
        return given
    if images.storage in ("decoded", "streamed"):
        count = max(1, min(MAX_WORKERS, cores() // max(1, processes)))
    else:
        count = min(2, cores()) if images.storage == "memory-mapped" and gpu else 0
    return min(count, shared_memory() // max(1, batch_bytes * max(1, processes)))


def describe_storage(images: Stored, workers: int) -> str:
    """Return in words where the images are stored and how many workers read them."""
    readers = f"{workers} worker{'s' if workers > 1 else ''}" if workers else "the training process"
    if images.storage == "decoded":
        return f"decoded at every epoch by {readers}"
    if images.storage == "streamed":
        return f"streamed by {readers}"
    return f"{images.storage}, read by {readers}" if workers else images.storage
