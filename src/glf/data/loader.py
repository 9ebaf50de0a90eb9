"""From stored images to batches: which rows, in which order, read how."""

import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from glf.data.resident import by_name, opened
from glf.data.store import Images
from glf.data.workers import room
from glf.types import Batch


class BatchReader(Dataset[Batch]):
    """A whole batch per look-up: indexing an array once beats collating its rows one by one."""

    def __init__(self, images: Images, prior: np.ndarray | None = None, masks: Images | None = None) -> None:
        if prior is not None and len(prior) != len(images):
            raise ValueError(f"the prior has {len(prior)} rows, the data {len(images)} images")
        self.images, self.prior, self.masks = images, prior, masks

    def __getstate__(self) -> dict[str, Any]:
        """For a worker that is started anew, as everywhere but on Linux, rather than forked."""
        sets = {"images": self.images, "masks": self.masks}
        named = {name: s and {k: by_name(v) for k, v in vars(s).items()} for name, s in sets.items()}
        return {**named, "prior": by_name(self.prior)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        sets = {
            name: state[name] and Images(**{k: opened(v) for k, v in state[name].items()})
            for name in ("images", "masks")
        }
        self.images, self.masks, self.prior = sets["images"], sets["masks"], opened(state["prior"])

    def __getitem__(self, rows: np.ndarray) -> Batch:
        return Batch(
            images=to_tensor(self.images.pixels[rows]),
            target=torch.from_numpy(self.images.targets[rows]),
            row=torch.from_numpy(rows),
            prior=None if self.prior is None else torch.from_numpy(np.ascontiguousarray(self.prior[rows])),
            mask=None if self.masks is None else to_tensor(self.masks.pixels[rows]),
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


def loader(
    images: Images,
    batches: EpochBatches,
    *,
    prior: np.ndarray | None,
    masks: Images | None = None,
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
        BatchReader(images, prior, masks),
        sampler=batches,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin,
        persistent_workers=workers > 0,
        prefetch_factor=ahead if workers else None,
        worker_init_fn=deaf if workers else None,
    )


def deaf(worker: int) -> None:
    """Ctrl-C and a batch system's SIGTERM reach all processes of a group: the one that trains saves its state first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def bytes_per_image(images: Images) -> int:
    return int(images.pixels.nbytes) // max(1, len(images))


def draw(targets: np.ndarray, count: int, seed: int) -> np.ndarray:
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


def to_tensor(
    pixels: UInt8[np.ndarray, "batch height width channel"],
) -> UInt8[Tensor, "batch channel height width"]:
    """The same bytes with the channels named first: torch's channels-last layout, which convolutions prefer."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2)


def statistics(images: Images, sample: int = 2_000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in [0, 1], over some images: from counts, without a float copy."""
    pixels = images.pixels[draw(images.targets, min(len(images), sample), seed=0)]
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.channels):
        share = np.bincount(pixels[..., channel].ravel(), minlength=256) / pixels[..., channel].size
        mean = float(share @ values)
        means.append(round(mean, 4))
        deviations.append(round(max(float(share @ (values - mean) ** 2) ** 0.5, 1e-3), 4))  # never zero
    return tuple(means), tuple(deviations)
