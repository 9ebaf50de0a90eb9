"""What training reads and what the probe looks at, from shards."""

from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from glf.config import PretrainConfig, Settled
from glf.data.shards import is_stream, open_stream
from glf.data.sources import SOURCES
from glf.data.stream import Stream
from glf.data.streamed import StreamReader, StreamSteps, stream_loader, workers_of
from glf.data.workers import described
from glf.train.directory import SKIPPED
from glf.train.feed import Asked, Feed, workers_for
from glf.types import Batch

PROBED = 2_000  # images of the shard that is left to the probe


def is_streamed(config: PretrainConfig) -> bool:
    """Whether the data are shards; a published set's name wins, as it does over a folder."""
    return config.data not in SOURCES and is_stream(config.data)


def streamed(config: Settled, asked: Asked) -> Feed:
    """A stream of shards, of which the last is left to the probe."""
    _refuse(config, asked)
    whole = stream = open_stream(config.data, size=config.image_size, labels=config.labels)
    if "target" in asked.needs and not stream.classes:
        raise ValueError(
            f"{asked.title} learns from labels, and {config.data} has none, or no shards.json that names the classes"
        )
    _check_prior(stream, config, asked)
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


def _refuse(config: Settled, asked: Asked) -> None:
    """What a stream cannot do."""
    if config.masks is not None:
        raise ValueError("--masks are matched by the names of files, and shards have none")
    if config.limit is not None:
        raise ValueError(
            "--limit draws from images that are all known, and those of shards are not: use --epoch-images"
        )
    if "row" in asked.needs:
        raise ValueError(
            f"{asked.title} keeps something for every image, and a stream does not know them all: use a folder"
        )


def _check_prior(stream: Stream, config: Settled, asked: Asked) -> None:
    """The prior comes with the samples, or not at all."""
    if "prior" not in asked.needs:
        return
    if stream.prior_width is None:
        raise ValueError(
            f"{asked.title} reads a prior, and {config.data} has no row of one beside its images: write the shards with"
            " one (glf shard --prior)"
        )
    default = Settled()
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
