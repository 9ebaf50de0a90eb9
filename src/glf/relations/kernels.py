"""Distributions proportional to a kernel: cosine softmax, Gaussian, Student-t; nearest entries; all entries equally."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from glf.config.adc import TScale
from glf.constrain.adc.blockwise import LOG_ZERO
from glf.constrain.adc.kernels import (
    NO_NEIGHBOUR,
    bandwidths,
    distances_between,
    log_gaussian,
    log_student,
    student_factor,
)
from glf.relations.rows import Bank, LogRows, Place, Rows, bank_of, equally, excluded, samples
from glf.similarity import similarities
from glf.types import Embeddings

Space = Literal["unit", "standard", "raw"]


@dataclass(frozen=True)
class Kernel(Rows):
    """A distribution proportional to a kernel of each anchor with each entry.

    ``of`` is the field of the anchors, ``to`` that of the entries in the batch if it is another one.
    """

    of: str = "z"
    to: str | None = None

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.of, self.to or self.of})

    def views(self, e: Embeddings) -> int | None:
        x = e.require(self.of)
        return None if x.ndim == 2 else len(x)

    def log_p(self, e: Embeddings, place: Place, bank: Bank | None = None) -> LogRows:
        return self.log_kernel(e, place, bank).log_softmax(-1)

    def log_kernel(self, e: Embeddings, place: Place, bank: Bank | None = None) -> LogRows:
        """Logarithms of the kernel, LOG_ZERO where an entry does not count; computed once for terms that share it."""

        def compute() -> Tensor:
            anchors = samples(e, self.of, place)
            if place.among == "bank":
                entries = bank_of(bank).features
            elif place.among == "queue":
                entries = e.require("queue")[place.queue]
            else:
                entries = samples(e, self.to or self.of, place)
            ignored = excluded(e, place, len(anchors), bank)
            values = self.of_samples(anchors, entries, ignored)
            return values if ignored is None else values.masked_fill(ignored, LOG_ZERO)

        return e.cached((self, place, "log_kernel"), compute)

    def of_samples(self, anchors: Tensor, entries: Tensor, ignored: Bool[Tensor, "anchor entry"] | None) -> LogRows:
        """Logarithms of the kernel of each anchor with each entry."""
        raise NotImplementedError(f"{type(self).__name__} has no of_samples()")


@dataclass(frozen=True)
class CosineSoftmax(Kernel):
    r"""Softmax of cosines over a temperature: :math:`\exp(\cos(x_i, x_j) / \tau)`."""

    temperature: float = 0.1

    def of_samples(self, anchors: Tensor, entries: Tensor, ignored: Tensor | None) -> Tensor:
        return similarities(anchors, entries, self.temperature)


@dataclass(frozen=True)
class Distance(Kernel):
    """A kernel of squared distances, multiplied by ``scale``.

    ``space`` is where they are measured: between unit vectors (``unit``), in units of the entries' mean variance along
    a dimension over their number of dimensions (``standard``, the prior's default), or as they are (``raw``). ``dim``
    is the effective dimension, and the default of ``scale`` except in raw space, where that is 1. With a
    ``perplexity``, each anchor's distances are multiplied by what gives its distribution that perplexity.
    """

    space: Space | None = None
    dim: float | None = None
    scale: float | None = None
    perplexity: float | None = None

    @property
    def effective_dim(self) -> float:
        return self.dim if self.dim is not None else 16.0 if self.of == "prior" else 8.0

    def distances(self, anchors: Tensor, entries: Tensor, ignored: Tensor | None) -> Float[Tensor, "anchor entry"]:
        """Scaled squared distances."""
        space = self.space or ("standard" if self.of == "prior" else "unit")
        scale = self.scale if self.scale is not None else 1.0 if space == "raw" else self.effective_dim
        if space == "unit":
            anchors, entries = F.normalize(anchors, dim=-1), F.normalize(entries, dim=-1)
        if space == "standard":
            variance = entries.var(0).mean().clamp_min(torch.finfo(entries.dtype).tiny) * entries.shape[-1]
            anchors, entries = ((x - entries.mean(0)) / variance.sqrt() for x in (anchors, entries))
        found = scale * distances_between(anchors, entries)
        if self.perplexity is None:
            return found
        near = found.detach() if ignored is None else found.detach().masked_fill(ignored, NO_NEIGHBOUR)
        return found * bandwidths(near, self.of_distances, self.perplexity).unsqueeze(1)

    def of_samples(self, anchors: Tensor, entries: Tensor, ignored: Tensor | None) -> Tensor:
        return self.of_distances(self.distances(anchors, entries, ignored))

    def of_distances(self, distances: Tensor) -> Tensor:
        """Logarithm of the kernel."""
        raise NotImplementedError(f"{type(self).__name__} has no of_distances()")


@dataclass(frozen=True)
class Gaussian(Distance):
    r"""Gaussian kernel: :math:`\exp(-D_{ij} / 2)`."""

    def of_distances(self, distances: Tensor) -> Tensor:
        return log_gaussian(distances)


@dataclass(frozen=True)
class StudentT(Distance):
    r"""Student-t kernel with rho degrees of freedom: :math:`(1 + D'_{ij} / \rho)^{-(\rho + k) / 2}`, as in ADC."""

    rho: float = 5.0
    t_scale: TScale = "printed"

    def of_distances(self, distances: Tensor) -> Tensor:
        return log_student(distances * student_factor(self.rho, self.t_scale), self.rho, self.effective_dim)


@dataclass(frozen=True)
class Nearest(Kernel):
    """The k entries with the largest cosine, equally. Without gradient."""

    k: int = 5

    def log_p(self, e: Embeddings, place: Place, bank: Bank | None = None) -> LogRows:
        cosines = self.log_kernel(e, place, bank).detach()
        chosen = cosines.topk(min(self.k, cosines.shape[1]), dim=1).indices
        near = torch.zeros_like(cosines, dtype=torch.bool).scatter(1, chosen, torch.ones_like(chosen, dtype=torch.bool))
        return equally(near, excluded(e, place, len(cosines), bank), cosines.dtype)

    def of_samples(self, anchors: Tensor, entries: Tensor, ignored: Tensor | None) -> Tensor:
        return similarities(anchors, entries, 1.0)


@dataclass(frozen=True)
class Uniform(Kernel):
    """All entries equally: a small share of it keeps a target from being too sure."""

    def views(self, e: Embeddings) -> int | None:
        return None

    def of_samples(self, anchors: Tensor, entries: Tensor, ignored: Tensor | None) -> Tensor:
        return anchors.new_zeros(len(anchors), len(entries))
