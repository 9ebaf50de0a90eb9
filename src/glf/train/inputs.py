"""The data of a run: the online probe's images and the batches of training, from images or from shards."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch.utils.data import DataLoader

from glf.config.training import ResolvedPretrainConfig
from glf.data import sources
from glf.data.batches import EpochBatches, describe_storage, image_loader, worker_count
from glf.data.images import ImageSet, split_held_out
from glf.data.shards.loader import StreamDataset, StreamSampler, stream_dataloader, usable_workers
from glf.data.shards.read import ShardStream
from glf.device import torch_device
from glf.nn.prior import prior_features
from glf.objective import Objective
from glf.runfiles import SKIPPED
from glf.terms import Banked
from glf.train.resolve import Resolved, holds_out
from glf.types import Batch

BANK = 8_192  # images of the bank that LPM compares with
PROBE_SHARD_IMAGES = 2_000  # images of the held-out shard that the online probe uses


@dataclass(kw_only=True)
class Inputs(ABC):
    """The data of a run. ``train`` and ``val`` are indices into ``images``, which for shards are the probe's only."""

    config: ResolvedPretrainConfig
    needs: frozenset[str]  # fields that the objective reads
    images: ImageSet
    train: np.ndarray
    val: np.ndarray
    count: int  # images per epoch
    total: int  # all images, as far as known
    classes: tuple[str, ...]
    labelled: bool
    key: str
    description: str  # where the images are, and how many workers read them
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # mean and std of the channels, if known
    streamed: bool = False
    prior: np.ndarray | None = field(default=None, init=False)  # its features of the images, once they are computed
    prior_width: int = 0

    @abstractmethod
    def compute_prior(self, say: Callable[[str], None]) -> None:
        """Compute the prior's features of all images, or load them from the cache."""

    def check_labels(self, run: Resolved) -> None:
        """Refuse a method that needs labels, if there are none."""
        if "target" in self.needs and not self.labelled:
            raise ValueError(f"{run.method.title} needs labels, and {self.config.data} has none")

    def fill_bank(self, objective: Objective) -> None:
        """Give the objective the prior's features of all images, if a term compares with a bank of them."""
        return

    @abstractmethod
    def dataloader(self, rank: int, world: int) -> DataLoader[Batch]:
        """Return the batches of one process."""


def load_inputs(run: Resolved) -> Inputs:
    """Load the images, or open the shards, of a run."""
    return _shard_inputs(run, run.shards) if run.shards is not None else _image_inputs(run)


@dataclass(kw_only=True)
class ImageInputs(Inputs):
    """Images that are in memory, memory-mapped, or files decoded at every epoch."""

    workers: int

    def only_used(self) -> "ImageInputs":
        """The same without the images that --max-images leaves out."""
        used = np.sort(np.concatenate((self.train, self.val)))
        if len(used) == len(self.images):
            return self
        train, val = (np.searchsorted(used, rows) for rows in (self.train, self.val))
        return replace(self, images=self.images.select(used), train=train, val=val)

    def compute_prior(self, say: Callable[[str], None]) -> None:
        if "prior" not in self.needs:
            return
        config = self.config
        say(f"prior     {config.prior}: features of {len(self.images):,} images")
        self.prior = prior_features(config, self.images, device=torch_device(config.device))
        self.prior_width = self.prior.shape[1]

    def fill_bank(self, objective: Objective) -> None:
        """Give terms with a bank the prior's features of the training images, or of a sample of them."""
        for term in objective.modules():
            if isinstance(term, Banked) and term.reads_bank:
                assert self.prior is not None, "the term needs it"
                rows = np.sort(np.random.default_rng(self.config.seed).permutation(self.train)[:BANK])
                term.set_bank(torch.from_numpy(np.array(self.prior[rows])), torch.from_numpy(rows))

    def dataloader(self, rank: int, world: int) -> DataLoader[Batch]:
        batches = EpochBatches(self.train, self.config.batch_size, self.config.seed, rank, world)
        pin = torch_device(self.config.device) == "cuda"
        return image_loader(self.images, batches, prior=self.prior, workers=self.workers, pin=pin)


def _image_inputs(run: Resolved) -> ImageInputs:
    config = run.config
    images = sources.load_images(
        config.data,
        "train",
        source=run.source,
        size=config.image_size,
        root=config.root,
        labels=config.labels,
        store=config.store,
        download=config.download,
    )
    train, val = split_held_out(images, config)
    EpochBatches(train, config.batch_size, config.seed)  # refuses a batch larger than the data
    workers = worker_count(
        images,
        config.workers,
        gpu=run.accelerator != "cpu",
        processes=config.devices,
        batch_bytes=images.bytes_per_image * config.batch_size // (config.devices * config.nodes),
    )
    return ImageInputs(
        config=config,
        needs=run.objective.needs,
        images=images,
        train=train,
        val=val,
        count=len(train),
        total=len(images),
        classes=images.classes,
        labelled=images.labelled,
        key=images.key,
        description=describe_storage(images, workers),
        workers=workers,
    )


@dataclass(kw_only=True)
class ShardInputs(Inputs):
    """A stream of shards; the last shard is held out for the online probe."""

    shards: ShardStream

    def compute_prior(self, say: Callable[[str], None]) -> None:
        if "prior" in self.needs:
            self.prior_width = self.shards.prior_width or 0
            say(f"prior     {self.shards.prior}: {self.prior_width} features stored with each image")

    def dataloader(self, rank: int, world: int) -> DataLoader[Batch]:
        config = self.config
        if config.batch_size % world:
            raise ValueError(f"a global batch of {config.batch_size} cannot be split among {world} processes")
        assert config.workers is not None, "resolve() sets it for shards"
        reader = StreamDataset(
            self.shards,
            batch_size=config.batch_size // world,
            seed=config.seed,
            shuffle=config.shuffle,
            rank=rank,
            world=world,
            prior="prior" in self.needs,
            skipped_file=None if config.dry_run or config.out is None else config.out / SKIPPED,
        )
        steps = StreamSampler(self.count, config.batch_size)
        workers = usable_workers(self.shards, config.workers, world)
        return stream_dataloader(reader, steps, workers=workers, pin=torch_device(config.device) == "cuda")


def _shard_inputs(run: Resolved, shards: ShardStream) -> ShardInputs:
    config = run.config
    training = shards
    if holds_out(shards, config):
        training, held_out = shards.held_out()
        images = training.images(held_out, PROBE_SHARD_IMAGES)
        order = np.random.default_rng([config.seed, 7]).permutation(len(images))
        few = len(images) // 2 if config.val_images is None else min(config.val_images, len(images) - 1)
        train, val = np.sort(order[few:]), np.sort(order[:few])
    else:
        images = shards.images(shards.urls[0], PROBE_SHARD_IMAGES)
        train, val = np.arange(len(images)), np.arange(0)
    count = config.epoch_images or training.count
    if count is None:
        raise ValueError(
            f"the number of images in {config.data} is unknown without a shards.json: set --epoch-images, the images"
            " per epoch"
        )
    StreamSampler(count, config.batch_size)  # refuses a batch larger than an epoch
    assert config.workers is not None, "resolve() sets it for shards"
    return ShardInputs(
        config=config,
        needs=run.objective.needs,
        images=images,
        train=train,
        val=val,
        count=count,
        total=shards.count or count,
        classes=training.classes,
        labelled=bool(training.classes),
        key=shards.key,
        description=f"{len(training.urls):,} shards {describe_storage(training, config.workers)}",
        statistics=(training.mean, training.std),
        streamed=True,
        shards=training,
    )
