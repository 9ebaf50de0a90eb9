"""shards.json: what is known of a set of shards without reading them."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any

SCHEMA = 1
FILE = "shards.json"


@dataclass(frozen=True, kw_only=True)
class PriorNote:
    """Which prior the rows beside the images come from."""

    name: str  # pixels, timm:<model>, run:<directory>, file:<array>
    width: int
    digest: str  # of the rows themselves: other weights give others


@dataclass(frozen=True, kw_only=True)
class Description:
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
    prior: PriorNote | None

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


def parsed(text: str, place: str) -> Description:
    """A shards.json that was found at ``place``; ValueError where it is something else."""
    try:
        content: dict[str, Any] = json.loads(text)
        schema = content.pop("schema")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{place} is no {FILE} as glf shard writes it") from None
    if schema != SCHEMA:
        raise ValueError(f"{place} has schema {schema}; this version of glf reads {SCHEMA}: write the shards anew")
    missing = {field.name for field in fields(Description)} ^ content.keys()
    if missing:
        raise ValueError(f"{place} is no {FILE} as glf shard writes it: look at {', '.join(sorted(missing))}")
    prior = content.pop("prior")
    content |= {name: tuple(content[name]) for name in ("mean", "std", "classes")}
    return Description(**content, prior=None if prior is None else PriorNote(**prior))
