"""glf embed --part: the features of one of many parts of the images, each of which any machine may compute.

A part consists of whole batches, of the same images as in the table of all. So its features are the same to the last
bit, whichever machine of one kind computes it. It lists all images, and reads only its own.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from itertools import islice
from typing import NamedTuple

import numpy as np
from rich.console import Console

from glf.config.inference import EmbedConfig, Part
from glf.data.decode import VERSION, SizeLimits, decode_alone, quiet
from glf.data.decode_all import decode_each, in_threads
from glf.data.shards.fetch import is_local
from glf.data.shards.index import is_stream, shard_urls
from glf.data.shards.read import ShardSample, read_samples, skipped_sample, webdataset
from glf.data.source import MAX_CLASSES, UNREAD, Skipped, Source
from glf.data.sources import find_source
from glf.device import torch_device
from glf.inference.common import open_encoder
from glf.inference.destination import open_destination
from glf.inference.part_files import (
    SCHEMA,
    PartNote,
    Rows,
    as_skipped,
    check_folder,
    differences,
    part_name,
    write_part,
)
from glf.malloc import retain_freed_memory
from glf.nn.features import encoding, path_text
from glf.ui import counted, progress, say


class Image(NamedTuple):
    """One image of a part: its pixels, or why it is skipped."""

    path: str
    label: int | None
    pixels: np.ndarray | Skipped


class Divided(ABC):
    """Images that can be divided into parts."""

    labelled: bool  # whether there is a column of labels
    listing: str  # 16 hex digits that change with the names and sizes of the images

    @abstractmethod
    def batches(self, part: Part, size: int, limits: SizeLimits) -> Iterator[list[Image]]:
        """Yield the batches of a part, in order."""


class DividedSource(Divided):
    """A folder, a tar or an array. A part has the batches that it would have in the table of all."""

    labelled = False

    def __init__(self, source: Source) -> None:
        self.source, self.listing = source, source.listing

    def batches(self, part: Part, size: int, limits: SizeLimits) -> Iterator[list[Image]]:
        mine = part.share(-(-len(self.source) // size))
        indices = range(mine.start * size, min(mine.stop * size, len(self.source)))
        with closing(decode_each(self.source, indices, limits)) as decoded:
            images = (Image(path_text(self.source, i), None, one) for i, one in zip(indices, decoded, strict=True))
            while batch := list(islice(images, size)):
                yield batch


class DividedShards(Divided):
    """WebDataset shards. A part has whole shards and reads no others; the last batch of a shard may be smaller."""

    labelled = True

    def __init__(self, data: str) -> None:
        webdataset()  # says what to install
        self.urls, index = shard_urls(data)
        facts = [(url.rsplit("/", 1)[-1], os.path.getsize(url) if is_local(url) else 0) for url in self.urls]
        text = repr((VERSION, facts, index and index.digest))
        self.listing = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def batches(self, part: Part, size: int, limits: SizeLimits) -> Iterator[list[Image]]:
        def decoded(sample: ShardSample | Skipped) -> Image:
            if isinstance(sample, Skipped):
                return Image(sample.name, None, sample)
            try:
                return Image(sample.name, _label(sample.label), decode_alone(sample.image, limits))
            except Exception as error:  # PIL's plugins raise almost anything on a broken file
                return Image(sample.name, None, skipped_sample(sample, error))

        for number in part.share(len(self.urls)):
            with closing(in_threads(decoded, read_samples(self.urls[number], number))) as images:
                while batch := list(islice(images, size)):
                    yield batch


def _label(content: bytes | None) -> int | None:
    """The label of a sample; None without one, or if it is none that training would take."""
    try:
        label = int(content or b"")
    except ValueError:
        return None
    return label if 0 <= label < MAX_CLASSES else None


def embed_part(config: EmbedConfig, part: Part, console: Console) -> str:
    """Write the file of a part unless it is there and whole; return its path or URL."""
    if find_spec("pyarrow") is None:
        raise ValueError("--part writes Parquet files, which needs pyarrow: pip install 'glf[parquet]'")
    folder, name = open_destination(config.out), part_name(part)
    earlier = check_folder(folder, part)
    if earlier is None:
        folder.check(name)
    images = _open(config)
    encoder = open_encoder(config)
    skipped, seen, unread = list[Skipped](), 0, 0

    def note() -> PartNote:
        return {
            "schema": SCHEMA,
            "part": part.number,
            "parts": part.of,
            "model": config.run,
            "encoder": encoder.fingerprint,
            "data": config.data,
            "listing": images.listing,
            "batch_size": config.batch_size,
            "rows": 0,
            "skipped": as_skipped(skipped),
        }

    if earlier is not None:
        if differing := differences(earlier, note()):
            raise ValueError(
                f"{folder.place(name)} was made with other settings ({differing} differ): choose another --out, or move"
                " it away"
            )
        say(console, f"kept      {folder.place(name)}: {counted(earlier['rows'], 'image')}")
        return folder.place(name)
    device = torch_device(config.device)
    assert encoder.size is not None
    with (
        retain_freed_memory(device == "cpu"),
        encoding(encoder.module, size=encoder.size, device=device) as features_of,
        quiet(),
        progress() as bar,
        folder.write(name) as file,
    ):
        width = features_of(np.zeros((1, encoder.size, encoder.size, encoder.channels), np.uint8)).shape[1]
        task = bar.add_task(f"part {config.part}", total=None)

        def rows() -> Iterator[Rows]:
            nonlocal seen, unread
            for batch in images.batches(part, config.batch_size, encoder.limits):
                good = [image for image in batch if not isinstance(image.pixels, Skipped)]
                for image in batch:
                    if isinstance(image.pixels, Skipped):
                        skipped.append(Skipped(image.path, image.pixels.why))
                        unread += image.pixels.why.startswith(UNREAD)
                seen += len(batch)
                bar.update(task, completed=seen)
                if good:
                    pixels = [encoder.fitted(image.pixels) for image in good if isinstance(image.pixels, np.ndarray)]
                    yield Rows([image.path for image in good], [image.label for image in good], features_of(pixels))
            if 2 * unread > seen:
                first = next(one for one in skipped if one.why.startswith(UNREAD))
                raise OSError(
                    f"{unread:,} of the {seen:,} images of part {config.part} cannot be read, first {first.line(': ')}:"
                    " nothing is written; run it again when they can"
                )

        count = write_part(file, width, images.labelled, rows(), note)
    say(console, f"part      {config.part} of {config.data}: {counted(count, 'image')}, {width} features each")
    if skipped:
        say(console, f"skipped   {len(skipped):,} files, first {skipped[0].line(': ')}")
    say(console, f"written   {folder.place(name)}")
    return folder.place(name)


def _open(config: EmbedConfig) -> Divided:
    if is_stream(config.data):
        return DividedShards(config.data)
    return DividedSource(find_source(config.data, "all", download=config.download))
