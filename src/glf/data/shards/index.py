"""The meaning of ``--data`` for shards.

``--data`` is a folder with a shards.json, that file itself, a pattern with braces, a .txt list, a URL or a command.
Without a shards.json, the first samples determine image size, normalisation and whether there are prior features.
"""

import hashlib
import io
import os
import re
import tarfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from glf.config.training import Labels
from glf.data.decode import StoredSize, decode_as, needed_shape, quiet, side_limits
from glf.data.images import statistics
from glf.data.shards.fetch import check_scheme, is_command, is_local, read_url
from glf.data.shards.read import BrokenShard, ShardSample, ShardStream, read_samples, webdataset
from glf.data.shards.schema import INDEX_FILE, MAX_INDEX, MAX_SHARDS, ShardIndex, parse_index, shard_name

UNNAMED_PRIOR = "unnamed"  # name of the prior of shards without a shards.json
MAX_LIST = 2**28  # bytes of a list of shards
INSPECTED_SAMPLES = 256  # of shards without a shards.json


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
    urls, index = shard_urls(data)
    if index is not None:
        return _from_index(data, urls, index, size, labels)
    return _from_samples(data, urls, size, labels)


def shard_urls(data: str) -> tuple[tuple[str, ...], ShardIndex | None]:
    """The shards that ``--data`` refers to, and what a shards.json says about them; no shard is read."""
    index = _index_url(data)
    if index is None:
        urls = tuple(_expanded(data))
        _check_urls(urls, data)
        return urls, None
    description = parse_index(_text(read_url(index, MAX_INDEX), index), index)
    base = index[: -len(INDEX_FILE)]
    urls = tuple(base + shard_name(number) for number in range(description.shards))
    _check_urls(urls, data)
    if is_local(index):
        _check_plausible(description, urls, index)
    return urls, description


def _index_url(data: str) -> str | None:
    """Path or URL of the shards.json; None if ``data`` has none."""
    path = Path(data).expanduser()
    if is_local(data) and path.is_dir():
        return str(path / INDEX_FILE)
    if data.endswith("/") and not is_local(data) and not is_command(data):
        return data + INDEX_FILE
    return os.path.expanduser(data) if data.rsplit("/", 1)[-1] == INDEX_FILE else None


def _text(content: bytes, url: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{url} is not a text file") from None


def _expanded(data: str) -> list[str]:
    """Expand braces; read a .txt list line by line. A list may name files and URLs, but never commands to execute."""
    if not is_local(data) or not data.endswith(".txt"):
        return _expand(data, data)
    text = _text(read_url(os.path.expanduser(data), MAX_LIST), data)
    lines = [line.strip() for line in text.splitlines()]
    urls: list[str] = []
    for line in lines:
        if line and not line.startswith("#"):
            urls += _expand(line, data)
        if len(urls) > MAX_SHARDS:
            raise ValueError(f"{data} lists more than {MAX_SHARDS:,} shards: write larger ones")
    commands = [url for url in urls if is_command(url)]
    if commands:
        raise ValueError(f"{data} contains a command ({commands[0]}): commands are only accepted in --data itself")
    if not urls:
        raise ValueError(f"{data} lists no shards")
    return urls


def _expand(pattern: str, data: str) -> list[str]:
    """Expand the braces of a path or URL. The number of names is computed first, because it may be astronomical."""
    try:
        if sum(_names(part) for part in pattern.split("::")) > MAX_SHARDS:
            raise ValueError(f"it stands for more than {MAX_SHARDS:,} shards")
        return [os.path.expanduser(url) for url in webdataset().shardlists.expand_urls(pattern)]
    except (ValueError, AssertionError, RecursionError) as error:
        where = "" if pattern == data else f" in {data}"
        if "pip install" in str(error):
            raise
        raise ValueError(f"the pattern {pattern!r:.120}{where} cannot be used: {error}") from None


def _names(pattern: str) -> int:
    """Return the number of names that a pattern with braces stands for, without making them.

    >>> _names("a-{000..099}-{x,y{1..3}}.tar"), _names("{0..9999999999}")
    (400, 10000000000)
    """
    names, depth, start = 1, 0, 0
    for at, character in enumerate(pattern):
        depth += (character == "{") - (character == "}")
        if character == "{" and depth == 1:
            start = at + 1
        elif character == "}" and depth == 0:
            inside = pattern[start:at]
            limits = re.match(r"(-?\d{1,30})\.\.(-?\d{1,30})($|\.\.)", inside)
            if limits:
                names *= abs(int(limits[1]) - int(limits[2])) + 1
            else:
                names *= sum(_names(part) for part in _alternatives(inside))
    return names


def _alternatives(inside: str) -> list[str]:
    """Split at commas that are not within further braces."""
    parts, depth = [""], 0
    for character in inside:
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _check_urls(urls: tuple[str, ...], data: str) -> None:
    missing = [url for url in urls if is_local(url) and not os.path.isfile(url)]
    if missing:
        raise ValueError(
            f"{len(missing)} of the {len(urls)} shards of {data} do not exist, the first is {missing[0]} (a .txt file"
            " lists one shard per line)"
        )
    for one in {url.partition(":")[0]: url for url in urls}.values():  # each scheme once
        check_scheme(one)


def _check_plausible(index: ShardIndex, urls: tuple[str, ...], source: str) -> None:
    """Raise ValueError if the shards are too small for so many images: each has a header and a block at least."""
    size = sum(os.path.getsize(url) for url in urls)
    if index.images > size // (2 * tarfile.BLOCKSIZE):
        raise ValueError(
            f"{source} says that there are {index.images:,} images, but its shards have only {size:,} bytes: write them"
            " again with glf shard"
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
    except Exception:  # a damaged header makes numpy raise almost anything
        return None
    return len(features) if features.ndim == 1 else None
