"""shards.json: what is known of a set of shards without reading them."""
# MERGED DOCS:
# | """What --data means where it names shards: a folder, a pattern in braces, a list, URLs."""

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
from glf.data.shards.read import BrokenShard, Sample, is_command, is_local, read_samples, webdataset
from glf.data.shards.stream import ShardStream

SCHEMA = 1
INDEX_FILE = "shards.json"


@dataclass(frozen=True, kw_only=True)
class ShardPrior:
    """Which prior the rows beside the images come from."""

    name: str  # pixels, timm:<model>, run:<directory>, file:<array>
    width: int
    digest: str  # of the rows themselves: other weights give others


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """All of it is known before the first shard is written."""

    name: str  # what the shards were made of
    split: str
    key: str  # of the images that they were made of
    images: int
    per_shard: int  # images of each but the last
    shards: int
    seed: int  # of the order
    channels: int
    side: int | None  # of the images, if they all are squares of one size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    labelled: bool  # every image is, and there is more than one class
    prior: ShardPrior | None

    def text(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    @property
    def digest(self) -> str:
        """16 hex digits that change whenever the shards or their order change."""
        return hashlib.blake2b(self.text().encode(), digest_size=8).hexdigest()

    @property
    def in_last(self) -> int:
        """Images of the last shard."""
        return self.images - (self.shards - 1) * self.per_shard


def shard_name(number: int) -> str:
    """
    >>> shard_name(12)
    'shard-000012.tar'
    """
    return f"shard-{number:06d}.tar"


def parse_index(text: str, place: str) -> ShardIndex:
    """A shards.json that was found at ``place``; ValueError where it is something else."""
    try:
        content: dict[str, Any] = json.loads(text)
        schema = content.pop("schema")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{place} is no {INDEX_FILE} as glf shard writes it") from None
    if schema != SCHEMA:
        raise ValueError(f"{place} has schema {schema}; this version of glf reads {SCHEMA}: write the shards anew")
    missing = {field.name for field in fields(ShardIndex)} ^ content.keys()
    if missing:
        raise ValueError(f"{place} is no {INDEX_FILE} as glf shard writes it: look at {', '.join(sorted(missing))}")
    prior = content.pop("prior")
    content |= {name: tuple(content[name]) for name in ("mean", "std", "classes")}
    return ShardIndex(**content, prior=None if prior is None else ShardPrior(**prior))


UNNAMED = "unnamed"  # the prior of rows that nobody describes
FIRST = 256  # samples that are looked at where there is no shards.json


def is_stream(data: str) -> bool:
    """Whether that means shards: a folder with a shards.json or that itself, a pattern in braces, a URL, a list."""
    if not is_local(data):
        return True
    path = os.path.expanduser(data)
    if os.path.isfile(path):
        return os.path.basename(path) == INDEX_FILE or path.endswith(".txt")
    return os.path.isfile(os.path.join(path, INDEX_FILE)) or ("{" in data and not os.path.exists(path))


def open_stream(data: str, *, size: int | None = None, labels: Labels = "auto") -> ShardStream:
    """The shards that ``data`` means; where no shards.json describes them, their first samples are looked at."""
    place = _described_at(data)
    if place is not None:
        description = parse_index(_text(place), place)
        base = place[: -len(INDEX_FILE)]
        urls = tuple(base + shard_name(number) for number in range(description.shards))
        _check_local(urls, data)
        return _as_described(data, urls, description, size, labels)
    urls = tuple(_expanded(data))
    _check_local(urls, data)
    return _as_found(data, urls, size, labels)


def _described_at(data: str) -> str | None:
    """The path or URL of the shards.json, if one was asked for."""
    path = Path(data).expanduser()
    if is_local(data) and path.is_dir():
        return str(path / INDEX_FILE)
    return os.path.expanduser(data) if data.rsplit("/", 1)[-1] == INDEX_FILE else None


def _text(url: str) -> str:
    if is_local(url):
        return Path(url).read_text()
    with webdataset().gopen(url) as stream:
        text: bytes = stream.read()
    if not text:
        raise ValueError(f"{url} cannot be read: is it there?")
    return text.decode()


def _expanded(data: str) -> list[str]:
    """Braces expanded; of a list, line by line. A list from elsewhere may name files and URLs, but no commands."""
    expand = webdataset().shardlists.expand_urls
    if not is_local(data) or not data.endswith(".txt"):
        return [os.path.expanduser(url) for url in expand(data)]
    lines = [line.strip() for line in Path(data).expanduser().read_text().splitlines()]
    urls = [url for line in lines if line and not line.startswith("#") for url in expand(line)]
    commands = [url for url in urls if is_command(url)]
    if commands:
        raise ValueError(f"{data} names a command ({commands[0]}): commands are taken from --data alone")
    if not urls:
        raise ValueError(f"{data} names no shards")
    return [os.path.expanduser(url) for url in urls]


def _check_local(urls: tuple[str, ...], data: str) -> None:
    missing = [url for url in urls if is_local(url) and not os.path.isfile(url)]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(urls)} shards of {data} are not there, the first is {missing[0]} (each"
            " line of a .txt is a shard)"
        )


def _as_described(data: str, urls: tuple[str, ...], found: ShardIndex, size: int | None, labels: Labels) -> ShardStream:
    limits = side_limits(size)
    kept = found.side is not None and found.side <= limits.keep
    form = StoredSize(found.side if kept and found.side else limits.full, found.channels, not kept)
    wanted = labels == "auto"
    return ShardStream(
        name=data,
        urls=urls,
        count=found.images,
        form=form,
        mean=found.mean,
        std=found.std,
        classes=found.classes if wanted and found.labelled else (),
        labels=wanted,
        prior=found.prior.name if found.prior else None,
        prior_width=found.prior.width if found.prior else None,
        key=found.digest,
        in_last=found.in_last,
    )


def _as_found(data: str, urls: tuple[str, ...], size: int | None, labels: Labels) -> ShardStream:
    """What the first samples say: all others are brought to the shape that suits these."""
    samples = [one for one in islice(read_samples(urls[0], 0), FIRST) if isinstance(one, Sample)]
    shape, limits = None, side_limits(size)
    with quiet():
        for sample in samples:
            try:
                pixels = decode_as(sample.image, shape, limits)
            except Exception:  # it is listed when training meets it
                continue
            shape = needed_shape(pixels, shape, limits)
    if shape is None:
        raise BrokenShard(f"none of the first {len(samples)} samples of {urls[0]} has an image that can be decoded")
    width = _width(samples)
    stream = ShardStream(
        name=data,
        urls=urls,
        count=None,
        form=shape,
        mean=(),
        std=(),
        classes=(),
        labels=labels == "auto",
        prior=None if width is None else UNNAMED,
        prior_width=width,
        key=hashlib.blake2b("\n".join(urls).encode(), digest_size=8).hexdigest(),
    )
    mean, std = statistics(stream.images(urls[0], FIRST))
    return replace(stream, mean=mean, std=std)


def _width(samples: list[Sample]) -> int | None:
    """The width of the prior's rows, where every sample has one."""
    if any(sample.prior is None for sample in samples):
        return None
    try:
        row = np.load(io.BytesIO(samples[0].prior or b""), allow_pickle=False)
    except (ValueError, EOFError):
        return None
    return len(row) if row.ndim == 1 else None
