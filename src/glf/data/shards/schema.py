"""shards.json, which describes a set of shards, and what is a valid one."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from glf.config.base import nearest
from glf.data.source import MAX_CLASSES

INDEX_SCHEMA = 1
INDEX_FILE = "shards.json"
MAX_INDEX = 2**26  # bytes of a shards.json: a million classes with long names
MAX_SHARDS = 1_000_000  # in a set: their names are in the memory of every worker
MAX_IMAGES = 10**11


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


Check = tuple[str, Callable[[Any], bool]]  # what is expected, and whether a value is that


def _whole(low: int, high: int) -> Check:
    return f"a whole number from {low:,} to {high:,}", lambda value: type(value) is int and low <= value <= high


def _numbers(low: float, high: float) -> Check:
    def valid(value: Any) -> bool:
        return isinstance(value, list) and all(type(one) in (int, float) and low <= one <= high for one in value)

    return f"a list of numbers from {low:g} to {high:g}", valid


def _texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_CLASSES and all(isinstance(one, str) for one in value)


TEXT: Check = ("a text", lambda value: isinstance(value, str))
SIDE = _whole(1, 2**16)
PRIOR_FIELDS: dict[str, Check] = {"name": TEXT, "width": _whole(1, 2**20), "digest": TEXT}
INDEX_FIELDS: dict[str, Check] = {
    "name": TEXT,
    "split": TEXT,
    "key": TEXT,
    "images": _whole(1, MAX_IMAGES),
    "per_shard": _whole(1, MAX_IMAGES),
    "shards": _whole(1, MAX_SHARDS),
    "seed": _whole(0, 2**63),
    "channels": ("1 or 3", lambda value: type(value) is int and value in (1, 3)),
    "side": (f"null or {SIDE[0]}", lambda value: value is None or SIDE[1](value)),
    "mean": _numbers(0, 1),
    "std": _numbers(1e-6, 1),
    "classes": (f"a list of at most {MAX_CLASSES:,} texts", _texts),
    "labelled": ("true or false", lambda value: isinstance(value, bool)),
    "prior": ("null or an object", lambda value: value is None or isinstance(value, dict)),
}
assert list(INDEX_FIELDS) == [field.name for field in fields(ShardIndex)]


def parse_index(text: str, source: str) -> ShardIndex:
    """Parse the content of a shards.json; ``source`` is its path or URL, for error messages."""
    try:
        content: dict[str, Any] = json.loads(text)
        schema = content.pop("schema")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"{source} is not a {INDEX_FILE} written by glf shard") from None
    if schema != INDEX_SCHEMA:
        raise ValueError(
            f"{source} has schema {schema!r:.20}; this version of glf reads {INDEX_SCHEMA}: write the shards again"
        )
    _check(content, INDEX_FIELDS, source, "")
    prior = content.pop("prior")
    if prior is not None:
        _check(prior, PRIOR_FIELDS, source, "prior.")
    content |= {name: tuple(content[name]) for name in ("mean", "std", "classes")}
    index = ShardIndex(**content, prior=None if prior is None else ShardPrior(**prior))
    for name, expected, found in (
        ("shards", -(-index.images // index.per_shard), index.shards),
        ("mean", f"{index.channels} channels", f"{len(index.mean)} channels"),
        ("std", f"{index.channels} channels", f"{len(index.std)} channels"),
        ("labelled", index.labelled and len(index.classes) > 1, index.labelled),
    ):
        if found != expected:
            raise ValueError(
                f"{source} is not a {INDEX_FILE} written by glf shard: {name} is {found}, and the rest says {expected}"
            )
    return index


def _check(content: dict[str, Any], checks: dict[str, Check], source: str, prefix: str) -> None:
    wrong = f"{source} is not a {INDEX_FILE} written by glf shard"
    for name in content.keys() - checks.keys():
        raise ValueError(f"{wrong}: unknown key {prefix + name!r:.80}{nearest(name, checks)}")
    for name, (expected, valid) in checks.items():
        if name not in content:
            raise ValueError(f"{wrong}: no {prefix}{name}, expected {expected}")
        if not valid(content[name]):
            raise ValueError(f"{wrong}: {prefix}{name} is {content[name]!r:.80}, expected {expected}")
