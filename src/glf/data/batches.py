"""How many processes read the images, which depends on where these live."""
# MERGED DOCS:
# | """From stored images to batches: which rows, in which order, read how."""

import shutil
import signal
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from glf.data.images import ImageSet, Storage, bytes_per_image, memmap_handle, open_memmap
from glf.device import MAX_WORKERS, cores
from glf.types import Batch


@runtime_checkable
class Placed(Protocol):
    """Whatever has a place that its images are read from."""

    @property
    def storage(self) -> Storage: ...


def room() -> int:
    """Bytes of batches that may wait in shared memory: half of what is free, which in a container is often 32 MB."""
    try:
        return min(2 * 2**30, shutil.disk_usage("/dev/shm").free // 2)
    except OSError:  # macOS and Windows share memory by other means
        return 2 * 2**30


def worker_count(images: Placed, asked: int | None, *, gpu: bool, processes: int = 1, batch_bytes: int = 0) -> int:
    """What was asked for, or else what suits the place where the images live.

    Indexing memory is faster than the hand-over from another process. Memory-mapped images may come from the
    disk: a GPU should not wait for that, while a CPU that trains has no core to spare. Decoding takes every
    core that this process has for itself, next to the others of this node. There are no more workers than batches
    fit into shared memory, and none if not even one does.
    """
    if asked is not None:
        if asked < 0:
            raise ValueError(f"workers must be 0 or more, got {asked}")
        return asked
    if images.storage in ("decoded", "streamed"):
        count = max(1, min(MAX_WORKERS, cores() // max(1, processes)))
    else:
        count = min(2, cores()) if images.storage == "memory-mapped" and gpu else 0
    return min(count, room() // max(1, batch_bytes * max(1, processes)))


def described(images: Placed, workers: int) -> str:
    """Where the images live and who reads them, in the words of a run's first lines."""
    readers = f"{workers} worker{'s' if workers > 1 else ''}" if workers else "the training process"
    if images.storage == "decoded":
        return f"decoded at every epoch by {readers}"
    if images.storage == "streamed":
        return f"streamed by {readers}"
    return f"{images.storage}, read by {readers}" if workers else images.storage


class BatchReader(Dataset[Batch]):
    """A whole batch per look-up: indexing an array once beats collating its rows one by one."""

    def __init__(self, images: ImageSet, prior: np.ndarray | None = None) -> None:
        if prior is not None and len(prior) != len(images):
            raise ValueError(f"the prior has {len(prior)} rows, the data {len(images)} images")
        self.images, self.prior = images, prior

    def __getstate__(self) -> dict[str, Any]:
        """For a worker that is started anew, as everywhere but on Linux, rather than forked."""
        images = {name: memmap_handle(value) for name, value in vars(self.images).items()}
        return {"images": images, "prior": memmap_handle(self.prior)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.images = ImageSet(**{name: open_memmap(value) for name, value in state["images"].items()})
        self.prior = open_memmap(state["prior"])

    def __getitem__(self, rows: np.ndarray) -> Batch:
        return Batch(
            images=to_tensor(self.images.pixels[rows]),
            target=torch.from_numpy(self.images.targets[rows]),
            indices=torch.from_numpy(rows),
            prior=None if self.prior is None else torch.from_numpy(np.ascontiguousarray(self.prior[rows])),
        )


class EpochBatches(Sampler[np.ndarray]):
    """Batches of one epoch: a permutation that depends on the seed and the epoch alone, so a run can be resumed.

    The global batch is the same however many processes share it: each takes a part of it, in the order of their
    ranks, so that what they gather has the order of one process. The last, incomplete batch of an epoch is left out:
    statistics of a batch should not depend on a remainder.
    """

    def __init__(self, rows: np.ndarray, batch_size: int, seed: int, rank: int = 0, world: int = 1) -> None:
        if batch_size > len(rows):
            raise ValueError(
                f"a batch of {batch_size} is larger than the data ({len(rows)} training images): lower --batch-size"
            )
        if batch_size % world:
            raise ValueError(f"a global batch of {batch_size} cannot be shared by {world} processes")
        self.rows, self.batch_size, self.seed, self.rank, self.world = rows, batch_size, seed, rank, world
        self.epoch = 0
        self.begun = (0, 0)

    def begin(self, epoch: int, batch: int) -> None:
        """Go on in this epoch with this batch; later epochs begin with their first."""
        self.epoch, self.begun = epoch, (epoch, batch)

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows) // self.batch_size

    def __iter__(self) -> Iterator[np.ndarray]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.rows)
        own = self.batch_size // self.world
        for batch in range(self.begun[1] if self.epoch == self.begun[0] else 0, len(self)):
            start = batch * self.batch_size + self.rank * own
            yield order[start : start + own]


def image_loader(
    images: ImageSet,
    batches: EpochBatches,
    *,
    prior: np.ndarray | None,
    workers: int = 0,
    pin: bool = False,
) -> DataLoader[Batch]:
    """Batches of raw pixels, with each image's row of the prior where there is one.

    A worker prepares whole batches, up to four ahead, fewer where those are large: a container's shared memory is
    often small, and what waits longer does not come sooner. (torch gives each worker one thread.)
    """
    batch_bytes = batches.batch_size // batches.world * bytes_per_image(images)
    ahead = max(1, min(4, room() // max(1, workers * batch_bytes)))
    return DataLoader(
        BatchReader(images, prior),
        sampler=batches,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin,
        persistent_workers=workers > 0,
        prefetch_factor=ahead if workers else None,
        worker_init_fn=ignore_signals if workers else None,
    )


def ignore_signals(worker: int) -> None:
    """Ctrl-C and a batch system's SIGTERM reach all processes of a group: the one that trains saves its state first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def to_tensor(
    pixels: UInt8[np.ndarray, "batch height width channel"],
) -> UInt8[Tensor, "batch channel height width"]:
    """The same bytes with the channels named first: torch's channels-last layout, which convolutions prefer."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)
