"""Distributions of each anchor over other samples, as values: ``0.9 * OtherView() + 0.1 * CosineSoftmax("prior")``.

An anchor is an image in a view. Its entries are, by ``among``:

- ``batch``: the other images of its batch, in its own view;
- ``views``: all other samples of the batch, in all views;
- ``queue``: the entries that the transform ``FromQueue`` adds, unit vectors;
- ``bank``: the prior's features of many images, but not of its own.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from glf.constrain.adc.blockwise import LOG_ZERO
from glf.types import Embeddings

Among = Literal["batch", "views", "queue", "bank"]
LogRows = Float[Tensor, "anchor entry"]


class Place(NamedTuple):
    """Which samples are anchors and entries: a view of the anchors, and a view of a queue's entries."""

    among: Among
    view: int = 0
    queue: int = 0


class Bank(NamedTuple):
    """The prior's features of many images, and the images' positions in the data set."""

    features: Float[Tensor, "entry width"]
    indices: Tensor


@dataclass(frozen=True)
class Rows:
    """One distribution per anchor. ``w * rows + v * other`` mixes, ``rows * other ** power`` multiplies."""

    @property
    def needs(self) -> frozenset[str]:
        """Fields of Embeddings that are read."""
        return frozenset()

    def views(self, e: Embeddings) -> int | None:
        """Number of views, or None if all views share the distribution."""
        return None

    def log_p(self, e: Embeddings, place: Place, bank: Bank | None = None) -> LogRows:
        """Log-probabilities of the entries."""
        raise NotImplementedError(f"{type(self).__name__} has no log_p()")

    def __str__(self) -> str:
        """The class, and the settings that are not defaults."""
        changed = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in changed.items())})"

    def __rmul__(self, weight: float) -> "Mixture":
        return Mixture(((float(weight), self),))

    def __add__(self, other: "Rows") -> "Mixture":
        return Mixture((*_parts(self, Mixture), *_parts(other, Mixture)))

    def __mul__(self, other: "Rows") -> "Product":
        return Product((*_parts(self, Product), *_parts(other, Product)))

    def __pow__(self, power: float) -> "Product":
        return Product(((float(power), self),))


@dataclass(frozen=True)
class Mixture(Rows):
    r"""Mixture of distributions: :math:`p \propto \sum_k w_k p_k`."""

    parts: tuple[tuple[float, Rows], ...]

    def __str__(self) -> str:
        return " + ".join(f"{weight:g} {part}" for weight, part in self.parts)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(part.needs for _, part in self.parts))

    def views(self, e: Embeddings) -> int | None:
        return max((n for _, part in self.parts if (n := part.views(e)) is not None), default=None)

    def log_p(self, e: Embeddings, place: Place, bank: Bank | None = None) -> LogRows:
        total = sum(weight for weight, _ in self.parts)
        logs = [part.log_p(e, place, bank) + math.log(weight / total) for weight, part in self.parts if weight]
        mixed = torch.stack(logs).logsumexp(0)
        mass = mixed.logsumexp(1, keepdim=True)  # below one if a part has no entries for an anchor
        return torch.where(mass > LOG_ZERO / 2, mixed - mass, mixed).clamp_min(LOG_ZERO)


@dataclass(frozen=True)
class Product(Mixture):
    r"""Product of distributions, normalised again: :math:`p \propto \prod_k p_k^{w_k}`."""

    def __str__(self) -> str:
        return " * ".join(f"{part}^{power:g}" for power, part in self.parts)

    def log_p(self, e: Embeddings, place: Place, bank: Bank | None = None) -> LogRows:
        logs = torch.stack([power * part.log_p(e, place, bank) for power, part in self.parts])
        return logs.sum(0).clamp_min(LOG_ZERO).log_softmax(-1)


def _parts(rows: Rows, kind: "type[Mixture]") -> tuple[tuple[float, Rows], ...]:
    return rows.parts if isinstance(rows, Mixture) and type(rows) is kind else ((1.0, rows),)


@dataclass(frozen=True)
class OtherView(Rows):
    """The other views of the anchor's own image, equally. Among ``views`` only: SimCLR's target."""

    def log_p(self, e: Embeddings, place: Place, bank: Bank | None = None) -> LogRows:
        if place.among != "views":
            raise ValueError(f"OtherView is among 'views' only: no other view is among {place.among!r}")
        image = torch.arange(e.z.shape[1], device=e.z.device).repeat(len(e.z))
        return equally(image.unsqueeze(1) == image, excluded(e, place, len(image)), e.z.dtype)


@dataclass(frozen=True)
class Labels(Rows):
    """The samples of the anchor's own class, equally; none if there are none. Supervised: SupCon's target."""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"target"})

    def log_p(self, e: Embeddings, place: Place, bank: Bank | None = None) -> LogRows:
        if place.among not in ("batch", "views"):
            raise ValueError(f"Labels are among 'batch' or 'views': the classes of a {place.among} are not known")
        label = e.require("target").repeat(len(e.z) if place.among == "views" else 1)
        return equally(label.unsqueeze(1) == label, excluded(e, place, len(label)), e.z.dtype)


def samples(e: Embeddings, field: str, place: Place) -> Float[Tensor, "sample dim"]:
    """A field's vectors of the anchors: of one view, or of all views one after the other."""
    x = e.require(field)
    if place.among != "views":
        return x if x.ndim == 2 else x[place.view]
    if x.ndim == 2:
        return x.repeat(len(e.z), 1)
    if len(x) != len(e.z):
        raise ValueError(f"{field!r} has {len(x)} views and z has {len(e.z)}: among 'views' they must be the same")
    return x.flatten(0, 1)


def excluded(
    e: Embeddings, place: Place, anchors: int, bank: Bank | None = None
) -> Bool[Tensor, "anchor entry"] | None:
    """Entries that do not count, because they are the anchor itself."""
    if place.among == "queue":
        return None
    if place.among == "bank":
        return e.require("indices").unsqueeze(1) == bank_of(bank).indices.unsqueeze(0)
    return torch.eye(anchors, dtype=torch.bool, device=e.z.device)


def equally(
    chosen: Bool[Tensor, "anchor entry"], ignored: Bool[Tensor, "anchor entry"] | None, dtype: torch.dtype
) -> LogRows:
    """Log-probabilities that are equal for the chosen entries that count; all LOG_ZERO for an anchor without any."""
    counts = chosen if ignored is None else chosen & ~ignored
    total = counts.sum(1, keepdim=True).clamp_min(1).to(dtype)
    return (-total.log()).expand(counts.shape).masked_fill(~counts, LOG_ZERO)


def bank_of(bank: Bank | None) -> Bank:
    if bank is None:
        raise ValueError("among 'bank' needs the prior's features of the data set: call set_bank() first")
    return bank
