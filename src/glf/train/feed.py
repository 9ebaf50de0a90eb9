"""What training reads and what the probe looks at, from a source whose images are all known."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader

from glf.config import PretrainConfig, Settled
from glf.data import sources
from glf.data.loader import EpochBatches, bytes_per_image, draw, loader
from glf.data.masks import read_masks
from glf.data.pack import cache_root
from glf.data.store import Images
from glf.data.stream import Stream
from glf.data.workers import described, worker_count
from glf.nn.prior import prior_rows
from glf.types import Batch

MakeLoader = Callable[[int, int], DataLoader[Batch]]  # of a rank and a number of processes


class Asked(NamedTuple):
    """What the method and the machine ask of the data."""

    title: str  # of the method
    needs: frozenset[str]
    views: str  # the name of their recipe
    hides: bool  # one of them hides backgrounds
    accelerator: str
    place: str  # the same, as torch names it
    say: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Everything about the data that a run needs to know."""

    images: Images  # all of them; of a stream, those that the probe looks at
    train: np.ndarray  # rows of these that are no surprise to the network, or of a stream the first half
    val: np.ndarray  # rows of these that are held out
    total: int  # images in all, as far as that is known
    count: int  # images that make an epoch
    classes: tuple[str, ...]
    labelled: bool
    normal: tuple[tuple[float, ...], tuple[float, ...]] | None  # mean and deviation of the channels, if they are known
    key: str
    streamed: bool
    workers: int
    words: str  # where the images come from, and who reads them
    prepare: Callable[[], MakeLoader]  # may take long: a prior is computed
    settled: dict[str, Any] = field(
        default_factory=dict
    )  # settings that the data have decided, to be saved with the run


def split(images: Images, config: PretrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """Training rows, and rows held out of them for the probe: fixed by the seed, classes in proportion."""
    rows = np.arange(len(images))
    if config.limit is not None:
        rows = draw(images.targets, config.limit, config.seed)
    count = config.val_images
    if count is None:
        count = min(len(rows) // 10, 5_000) if images.labelled else 0
    val = rows[draw(images.targets[rows], count, config.seed + 1)]
    return np.setdiff1d(rows, val), val


def stored(config: Settled, asked: Asked) -> Feed:
    """Images that are in memory, mapped or files; mistakes are named before anything that takes long."""
    if config.epoch_images is not None:
        raise ValueError(f"--epoch-images is for shards, and {config.data} has none: use --limit")
    images = sources.load(
        config.data,
        "train",
        size=config.image_size,
        root=config.root,
        labels=config.labels,
        store=config.store,
        download=config.download,
    )
    masks = None
    if config.masks is not None:
        if not asked.hides:
            raise ValueError(f"no view of {asked.views} hides backgrounds: use --views salient")
        masks = read_masks(config.masks, config.data, images, size=config.image_size, store=config.store)
    train, val = split(images, config)
    EpochBatches(train, config.batch_size, config.seed)  # refuses a batch that the data cannot fill
    workers = workers_for(images, images, config, asked)

    def prepare() -> MakeLoader:
        prior = None
        if "prior" in asked.needs:
            asked.say(f"prior     {config.prior}: features of {len(images):,} images")
            prior = prior_rows(
                config.prior,
                images,
                cache=cache_root() / "prior",
                width=config.prior_width,
                weights=config.prior_weights,
                size=config.prior_size,
                download=config.download,
                device=asked.place,
            )

        def make_loader(rank: int, world: int) -> DataLoader[Batch]:
            batches = EpochBatches(train, config.batch_size, config.seed, rank, world)
            return loader(images, batches, prior=prior, masks=masks, workers=workers, pin=asked.accelerator == "gpu")

        return make_loader

    return Feed(
        images=images,
        train=train,
        val=val,
        total=len(images),
        count=len(train),
        classes=images.classes,
        labelled=images.labelled,
        normal=None,
        key=images.key,
        streamed=False,
        workers=workers,
        words=described(images, workers),
        prepare=prepare,
    )


def workers_for(source: Images | Stream, images: Images, config: Settled, asked: Asked) -> int:
    """Processes that read, for each process that trains."""
    batch_bytes = bytes_per_image(images) * config.batch_size // (config.devices * config.nodes)
    gpu = asked.accelerator != "cpu"
    return worker_count(source, config.workers, gpu=gpu, processes=config.devices, batch_bytes=batch_bytes)
