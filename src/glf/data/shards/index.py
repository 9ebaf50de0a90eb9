"""shards.json, which describes a set of shards, and the meaning of ``--data`` for shards.

``--data`` is a folder with a shards.json, that file itself, a pattern with braces, a .txt list, a URL or a command.
Without a shards.json, the first samples determine image size, normalisation and whether there are prior features.
"""

import hashlib
import io
import json
import os
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from glf.config.training import Labels
from glf.data.decode import StoredSize, decode_as, needed_shape, quiet, side_limits
from glf.data.images import statistics
from glf.data.shards.read import (
    BrokenShard,
    ShardSample,
    ShardStream,
    is_command,
    is_local,
    read_samples,
    webdataset,
)

INDEX_SCHEMA = 1
INDEX_FILE = "shards.json"
UNNAMED_PRIOR = "unnamed"  # name of the prior of shards without a shards.json
INSPECTED_SAMPLES = 256  # of shards without a shards.json


@dataclass(frozen=True, kw_only=True)
class ShardPrior:
    """The prior of the features stored with the images."""

    name: str  # pixels, timm:<model>, run:<directory>, file:<array>
    width: int
    digest: str  # of the features: differs for other weights of the same model


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """The content of shards.json. All of it is known before the first shard is written."""

    name: str  # data set that the shards were written from
    split: str
    key: str  # of that data set
    images: int
    per_shard: int  # images in each shard but the last
    shards: int
    seed: int  # of the order of the images
    channels: int
    side: int | None  # if all images are squares of one size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    labelled: bool  # every image has a label, and there is more than one class
    prior: ShardPrior | None

    def text(self) -> str:
        return json.dumps({"schema": INDEX_SCHEMA, **asdict(self)}, indent=1) + "\n"

    @property
    def digest(self) -> str:
        """16 hex digits that change whenever the shards or their order change."""
        return hashlib.blake2b(self.text().encode(), digest_size=8).hexdigest()

    @property
    def in_last(self) -> int:
        """Images in the last shard."""
        return self.images - (self.shards - 1) * self.per_shard


def shard_name(number: int) -> str:
    """
    >>> shard_name(12)
    'shard-000012.tar'
    """
    return f"shard-{number:06d}.tar"


def parse_index(text: str, source: str) -> ShardIndex:
    """Parse the content of a shards.json; ``source`` is its path or URL, for error messages."""
    try:
        content: dict[str, Any] = json.loads(text)
        schema = content.pop("schema")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{source} is not a {INDEX_FILE} written by glf shard") from None
    if schema != INDEX_SCHEMA:
        raise ValueError(
            f"{source} has schema {schema}; this version of glf reads {INDEX_SCHEMA}: write the shards again"
        )
    wrong = {field.name for field in fields(ShardIndex)} ^ content.keys()
    if wrong:
        raise ValueError(
            f"{source} is not a {INDEX_FILE} written by glf shard: missing or unknown {', '.join(sorted(wrong))}"
        )
    prior = content.pop("prior")
    content |= {name: tuple(content[name]) for name in ("mean", "std", "classes")}
    return ShardIndex(**content, prior=None if prior is None else ShardPrior(**prior))


def is_stream(data: str) -> bool:
    """Whether ``--data`` refers to shards: a folder with a shards.json, that file, a pattern, a .txt list, a URL."""
    if not is_local(data):
        return True
    path = os.path.expanduser(data)
    if os.path.isfile(path):
        return os.path.basename(path) == INDEX_FILE or path.endswith(".txt")
    return os.path.isfile(os.path.join(path, INDEX_FILE)) or ("{" in data and not os.path.exists(path))


def open_stream(data: str, *, size: int | None = None, labels: Labels = "auto") -> ShardStream:
    """Open the shards that ``--data`` refers to. Without a shards.json, the first samples are inspected."""
    index = _index_url(data)
    if index is not None:
        description = parse_index(_read_text(index), index)
        base = index[: -len(INDEX_FILE)]
        urls = tuple(base + shard_name(number) for number in range(description.shards))
        _check_local(urls, data)
        return _from_index(data, urls, description, size, labels)
    urls = tuple(_expanded(data))
    _check_local(urls, data)
    return _from_samples(data, urls, size, labels)


def _index_url(data: str) -> str | None:
    """Path or URL of the shards.json; None if ``data`` has none."""
    path = Path(data).expanduser()
    if is_local(data) and path.is_dir():
        return str(path / INDEX_FILE)
    return os.path.expanduser(data) if data.rsplit("/", 1)[-1] == INDEX_FILE else None


def _read_text(url: str) -> str:
    if is_local(url):
        return Path(url).read_text()
    with webdataset().gopen(url) as stream:
        text: bytes = stream.read()
    if not text:
        raise ValueError(f"cannot read {url}: does it exist?")
    return text.decode()


def _expanded(data: str) -> list[str]:
    """Expand braces; read a .txt list line by line. A list may name files and URLs, but never commands to execute."""
    expand = webdataset().shardlists.expand_urls
    if not is_local(data) or not data.endswith(".txt"):
        return [os.path.expanduser(url) for url in expand(data)]
    lines = [line.strip() for line in Path(data).expanduser().read_text().splitlines()]
    urls = [url for line in lines if line and not line.startswith("#") for url in expand(line)]
    commands = [url for url in urls if is_command(url)]
    if commands:
        raise ValueError(f"{data} contains a command ({commands[0]}): commands are only accepted in --data itself")
    if not urls:
        raise ValueError(f"{data} lists no shards")
    return [os.path.expanduser(url) for url in urls]


def _check_local(urls: tuple[str, ...], data: str) -> None:
    missing = [url for url in urls if is_local(url) and not os.path.isfile(url)]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(urls)} shards of {data} do not exist, the first is {missing[0]} (a .txt file"
            " lists one shard per line)"
        )


def _from_index(data: str, urls: tuple[str, ...], index: ShardIndex, size: int | None, labels: Labels) -> ShardStream:
    limits = side_limits(size)
    kept = index.side is not None and index.side <= limits.keep
    read_labels = labels == "auto"
    return ShardStream(
        name=data,
        urls=urls,
        count=index.images,
        size=StoredSize(index.side if kept and index.side else limits.full, index.channels, not kept),
        mean=index.mean,
        std=index.std,
        classes=index.classes if read_labels and index.labelled else (),
        labels=read_labels,
        prior=index.prior.name if index.prior else None,
        prior_width=index.prior.width if index.prior else None,
        key=index.digest,
        in_last=index.in_last,
    )


def _from_samples(data: str, urls: tuple[str, ...], size: int | None, labels: Labels) -> ShardStream:
    """Determine size, normalisation and prior width from the first samples; later images are resized to that size."""
    first = islice(read_samples(urls[0], 0), INSPECTED_SAMPLES)
    samples = [sample for sample in first if isinstance(sample, ShardSample)]
    shape, limits = None, side_limits(size)
    with quiet():
        for sample in samples:
            try:
                pixels = decode_as(sample.image, shape, limits)
            except Exception:  # training lists it in skipped.txt
                continue
            shape = needed_shape(pixels, shape, limits)
    if shape is None:
        raise BrokenShard(f"none of the first {len(samples)} samples of {urls[0]} has an image that can be decoded")
    width = _prior_width(samples)
    stream = ShardStream(
        name=data,
        urls=urls,
        count=None,
        size=shape,
        mean=(),
        std=(),
        classes=(),
        labels=labels == "auto",
        prior=None if width is None else UNNAMED_PRIOR,
        prior_width=width,
        key=hashlib.blake2b("\n".join(urls).encode(), digest_size=8).hexdigest(),
    )
    mean, std = statistics(stream.images(urls[0], INSPECTED_SAMPLES))
    return replace(stream, mean=mean, std=std)


def _prior_width(samples: list[ShardSample]) -> int | None:
    """Width of the prior features; None unless every sample has some."""
    if any(sample.prior is None for sample in samples):
        return None
    try:
        features = np.load(io.BytesIO(samples[0].prior or b""), allow_pickle=False)
    except (ValueError, EOFError):
        return None
    return len(features) if features.ndim == 1 else None
