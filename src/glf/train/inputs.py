"""What training reads and what the probe looks at, from a source whose images are all known."""
# MERGED DOCS:
# | """What training reads and what the probe looks at, from shards."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader

from glf.config.training import PretrainConfig, ResolvedPretrainConfig
from glf.data import sources
from glf.data.batches import EpochBatches, described, image_loader, worker_count
from glf.data.image_cache import cache_root
from glf.data.images import ImageSet, bytes_per_image, split_held_out
from glf.data.shards.index import is_stream, open_stream
from glf.data.shards.loader import StreamReader, StreamSteps, stream_loader, workers_of
from glf.data.shards.stream import ShardStream
from glf.data.sources import SOURCES
from glf.nn.prior import prior_rows
from glf.rundir import SKIPPED
from glf.types import Batch

MakeLoader = Callable[[int, int], DataLoader[Batch]]  # of a rank and a number of processes


class Asked(NamedTuple):
    """What the method and the machine ask of the data."""

    title: str  # of the method
    needs: frozenset[str]
    augment: str  # the name of the augmentation policy
    accelerator: str
    place: str  # the same, as torch names it
    say: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Everything about the data that a run needs to know."""

    images: ImageSet  # all of them; of a stream, those that the probe looks at
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


def stored(config: ResolvedPretrainConfig, asked: Asked) -> Feed:
    """Images that are in memory, mapped or files; mistakes are named before anything that takes long."""
    if config.epoch_images is not None:
        raise ValueError(f"--epoch-images is for shards, and {config.data} has none: use --max-images")
    images = sources.load(
        config.data,
        "train",
        size=config.image_size,
        root=config.root,
        labels=config.labels,
        store=config.store,
        download=config.download,
    )
    train, val = split_held_out(images, config)
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
            return image_loader(images, batches, prior=prior, workers=workers, pin=asked.accelerator == "gpu")

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


def workers_for(source: ImageSet | ShardStream, images: ImageSet, config: ResolvedPretrainConfig, asked: Asked) -> int:
    """Processes that read, for each process that trains."""
    batch_bytes = bytes_per_image(images) * config.batch_size // (config.devices * config.nodes)
    gpu = asked.accelerator != "cpu"
    return worker_count(source, config.workers, gpu=gpu, processes=config.devices, batch_bytes=batch_bytes)


PROBED = 2_000  # images of the shard that is left to the probe


def is_streamed(config: PretrainConfig) -> bool:
    """Whether the data are shards; a published set's name wins, as it does over a folder."""
    return config.data not in SOURCES and is_stream(config.data)


def streamed(config: ResolvedPretrainConfig, asked: Asked) -> Feed:
    """A stream of shards, of which the last is left to the probe."""
    _check_stream_options(config, asked)
    whole = stream = open_stream(config.data, size=config.image_size, labels=config.labels)
    if "target" in asked.needs and not stream.classes:
        raise ValueError(
            f"{asked.title} learns from labels, and {config.data} has none, or no shards.json that names the classes"
        )
    _check_stream_prior(stream, config, asked)
    if len(stream.urls) > 1 and config.val_images != 0:
        stream, held = stream.held_out()
        images = stream.images(held, PROBED)
        order = np.random.default_rng([config.seed, 7]).permutation(len(images))
        few = len(images) // 2 if config.val_images is None else min(config.val_images, len(images) - 1)
        train, val = np.sort(order[few:]), np.sort(order[:few])
    else:
        images = stream.images(stream.urls[0], PROBED)
        train, val = np.arange(len(images)), np.arange(0)
    count = config.epoch_images or stream.count
    if count is None:
        raise ValueError(
            f"how many images {config.data} has is not known without a shards.json: say how many make an epoch"
            " (--epoch-images)"
        )
    StreamSteps(count, config.batch_size)  # refuses a batch that an epoch cannot fill
    workers = workers_of(stream, workers_for(stream, images, config, asked), config.devices * config.nodes)
    settled: dict[str, Any] = {"workers": workers}  # which decide the order: --resume finds as many
    if "prior" in asked.needs:
        settled |= {"prior": stream.prior, "prior_width": stream.prior_width}

    def make_loader(rank: int, world: int) -> DataLoader[Batch]:
        if config.batch_size % world:
            raise ValueError(f"a global batch of {config.batch_size} cannot be shared by {world} processes")
        reader = StreamReader(
            stream,
            share=config.batch_size // world,
            seed=config.seed,
            shuffle=config.shuffle,
            rank=rank,
            world=world,
            prior="prior" in asked.needs,
            skipped=None if config.dry_run or config.out is None else config.out / SKIPPED,
        )
        steps = StreamSteps(count, config.batch_size)
        return stream_loader(reader, steps, workers=workers_of(stream, workers, world), pin=asked.accelerator == "gpu")

    return Feed(
        images=images,
        train=train,
        val=val,
        total=whole.count or count,
        count=count,
        classes=stream.classes,
        labelled=bool(stream.classes),
        normal=(stream.mean, stream.std),
        key=whole.key,
        streamed=True,
        workers=workers,
        words=f"{len(stream.urls):,} shards {described(stream, workers)}",
        prepare=lambda: make_loader,
        settled=settled,
    )


def _check_stream_options(config: ResolvedPretrainConfig, asked: Asked) -> None:
    """What a stream cannot do."""
    if config.max_images is not None:
        raise ValueError(
            "--max-images draws from images that are all known, and those of shards are not: use --epoch-images"
        )
    if "indices" in asked.needs:
        raise ValueError(
            f"{asked.title} keeps something for every image, and a stream does not know them all: use a folder"
        )


def _check_stream_prior(stream: ShardStream, config: ResolvedPretrainConfig, asked: Asked) -> None:
    """The prior comes with the samples, or not at all."""
    if "prior" not in asked.needs:
        return
    if stream.prior_width is None:
        raise ValueError(
            f"{asked.title} reads a prior, and {config.data} has no row of one beside its images: write the shards with"
            " one (glf shard --prior)"
        )
    default = ResolvedPretrainConfig()
    differing = [
        name
        for name, there in (
            ("prior", stream.prior),
            ("prior_width", stream.prior_width),
            ("prior_weights", None),
            ("prior_size", None),
        )
        if getattr(config, name) not in (getattr(default, name), there)
    ]
    if differing:
        flags = ", ".join(f"--{name.replace('_', '-')} {getattr(config, name)}" for name in differing)
        raise ValueError(
            f"{config.data} has rows of the prior {stream.prior}, {stream.prior_width} wide, so {flags}"
            " has no use: leave it out, or write other shards (glf shard --prior)"
        )
    asked.say(f"prior     {stream.prior}: {stream.prior_width} numbers beside every image")
