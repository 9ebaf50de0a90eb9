"""What --data means where it names shards: a folder, a pattern in braces, a list, URLs."""

import hashlib
import io
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from glf.config import Labels
from glf.data.decode import quiet
from glf.data.description import FILE, Description, parsed, shard_name
from glf.data.loader import statistics
from glf.data.samples import BrokenShard, Sample, is_command, is_local, read_samples, webdataset
from glf.data.shape import Shape, decode_as, needed_shape, side_limits
from glf.data.stream import Stream

UNNAMED = "unnamed"  # the prior of rows that nobody describes
FIRST = 256  # samples that are looked at where there is no shards.json


def is_stream(data: str) -> bool:
    """Whether that means shards: a folder with a shards.json or that itself, a pattern in braces, a URL, a list."""
    if not is_local(data):
        return True
    path = os.path.expanduser(data)
    if os.path.isfile(path):
        return os.path.basename(path) == FILE or path.endswith(".txt")
    return os.path.isfile(os.path.join(path, FILE)) or ("{" in data and not os.path.exists(path))


def open_stream(data: str, *, size: int | None = None, labels: Labels = "auto") -> Stream:
    """The shards that ``data`` means; where no shards.json describes them, their first samples are looked at."""
    place = _described_at(data)
    if place is not None:
        description = parsed(_text(place), place)
        base = place[: -len(FILE)]
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
        return str(path / FILE)
    return os.path.expanduser(data) if data.rsplit("/", 1)[-1] == FILE else None


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


def _as_described(data: str, urls: tuple[str, ...], found: Description, size: int | None, labels: Labels) -> Stream:
    limits = side_limits(size)
    kept = found.side is not None and found.side <= limits.keep
    form = Shape(found.side if kept and found.side else limits.full, found.channels, not kept)
    wanted = labels == "auto"
    return Stream(
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


def _as_found(data: str, urls: tuple[str, ...], size: int | None, labels: Labels) -> Stream:
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
    stream = Stream(
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
