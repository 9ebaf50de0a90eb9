"""Neighbour distributions: for each anchor, a probability distribution over the other images of its batch."""

import math
from dataclasses import fields

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from glf.config.adc import CovarianceKind, NeighbourOptions, Target
from glf.config.base import options_of
from glf.constrain.adc.blockwise import LOG_ZERO, Divergences, Given, Rows, StudentKernel, divergences
from glf.constrain.adc.kernels import (
    NO_NEIGHBOUR,
    bandwidths,
    distances_between,
    log_gaussian,
    log_student,
    squared_distances,
    student_factor,
)
from glf.constrain.adc.targets import bandwidths_in_batch, clean_target
from glf.nn.memory import CleanMemory, RunningCovariance, covariance_of
from glf.similarity import off_diagonal
from glf.terms import configuration
from glf.types import Embeddings

PERPLEXITY, MEMORY_SIZE, PRIOR_POWER = 10.0, 4_096, 1.0  # defaults of the options of the targets


def normalise_over_others(log_kernel: Float[Tensor, "*view anchor anchor"]) -> Float[Tensor, "*view anchor other"]:
    """Log-distribution of each anchor over the other samples, from log kernel values.

    >>> normalise_over_others(torch.zeros(3, 3)).exp().tolist()
    [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    return off_diagonal(log_kernel).log_softmax(-1)


def normalise_over_all(log_kernel: Float[Tensor, "*view anchor anchor"]) -> Float[Tensor, "*view anchor other"]:
    """Normalised over all samples, then without the anchor, as the paper prints it: the sum is below one.

    >>> normalise_over_all(torch.zeros(4, 4)).exp()[0].tolist()
    [0.25, 0.25, 0.25]
    """
    return off_diagonal(log_kernel.log_softmax(-1))


def entropy(log_p: Float[Tensor, "*view anchor other"]) -> Float[Tensor, "*view anchor"]:
    r"""Entropy of each neighbour distribution, in nats.

    .. math:: H_i = -\sum_{j \ne i} p_{ij} \log p_{ij}

    >>> round(float(entropy(torch.tensor([[0.5, 0.5]]).log())), 4)
    0.6931
    """
    return -(log_p.exp() * log_p).sum(-1)


class NeighbourDistributions(torch.nn.Module):
    """The three neighbour distributions of ADC: ``cal``, ``dat`` and ``pre``, within each view.

    ``reading="calibrated"`` puts z on the unit sphere and measures distances under ``covariance``, scaled to an
    effective dimension: in the full dimension the distributions would be one-hot or uniform. ``sphere`` is I/k, the
    covariance of the uniform distribution on the sphere; ``batch`` is estimated from the batch, with gradient;
    ``running`` is an exponential moving average. ``reading="paper"`` keeps what the paper prints: z as it is, an
    estimated covariance without gradient (``batch`` or ``running``), the full dimension, no 1/rho, and distributions
    normalised together with their anchor.

    ``target`` selects what ``cal`` is computed from (targets.py). With ``prior_perplexity``, each anchor's ``pre`` has
    a bandwidth of its own instead of one scale for all.
    """

    @options_of(NeighbourOptions)
    def __init__(self, options: NeighbourOptions) -> None:
        super().__init__()
        o, reading = options, options.reading
        self.target: Target = o.target or "own"
        self.covariance: CovarianceKind = o.covariance or ("sphere" if reading == "calibrated" else "batch")
        self.rho, self.t_scale, self.reading = o.rho, o.t_scale, reading
        self.effective_dim, self.prior_effective_dim = o.effective_dim, o.prior_effective_dim
        self.perplexity, self.prior_perplexity = o.perplexity or PERPLEXITY, o.prior_perplexity
        self.memory_size = o.memory_size or MEMORY_SIZE
        self.prior_power = PRIOR_POWER if o.prior_power is None else o.prior_power
        if reading == "paper" and self.covariance == "sphere":
            raise ValueError("reading='paper' needs an estimated covariance: 'batch' or 'running', not 'sphere'")
        if reading == "paper" and (self.target != "own" or self.prior_perplexity):
            raise ValueError("reading='paper' has the target 'own' and no perplexities: they are not in its equations")
        if self.target == "memory" and self.covariance != "sphere":
            raise ValueError(f"the target 'memory' needs the covariance 'sphere', not {self.covariance!r}")
        self.running = RunningCovariance() if self.covariance == "running" else None
        self.memory = CleanMemory(self.memory_size) if self.target == "memory" else None

    @classmethod
    def from_options(cls, options: NeighbourOptions) -> "NeighbourDistributions":
        """Built from the options of the same names; those of ADC that concern other things are left out."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(NeighbourOptions)})

    def extra_repr(self) -> str:
        return configuration(self)

    def log_cal(self, e: Embeddings) -> Float[Tensor, "view anchor other"]:
        """The target, as log-distributions over the batch without gradient; of ``own`` Eq. 11, left."""
        rows = self._target(e)
        if rows is None:
            log_cal = self._normalised(log_gaussian(self._distances(e))).detach()
            return (log_cal + self.prior_power * self.log_pre(e)).log_softmax(-1) if self.target == "prior" else log_cal
        assert rows.bandwidth is not None
        distances = rows.bandwidth.unsqueeze(1) * squared_distances(rows.points)
        return self._normalised(log_gaussian(distances)).expand(len(e.z), -1, -1)

    def log_dat(self, e: Embeddings) -> Float[Tensor, "view anchor other"]:
        """Student-t kernel of z, as log-distributions: Eq. 11, right."""
        dim = self.effective_dim if self.reading == "calibrated" else float(e.z.shape[-1])
        return e.cached((self, "dat"), lambda: self._student_distribution(self._distances(e), dim))

    def log_pre(self, e: Embeddings) -> Float[Tensor, "anchor other"]:
        """Student-t kernel of the prior's features, as log-distributions that all views share: Eq. 15."""
        prior = e.require("prior").detach()
        dim = self.prior_effective_dim if self.reading == "calibrated" else float(prior.shape[-1])

        def compute() -> Tensor:
            points = self._prior_points(prior)
            bandwidth = self._prior_bandwidth(points)
            distances = squared_distances(points)
            return self._student_distribution(
                distances if bandwidth is None else bandwidth.unsqueeze(1) * distances, dim
            )

        return e.cached((self, "pre"), compute)

    def divergences(self, e: Embeddings, *, entropies: bool = False) -> Divergences:
        """All that the calibrated terms need, in one pass over all pairs; computed once for DCM and LPM."""

        def compute() -> Divergences:
            of_z = self._points(e.z)
            slope = student_factor(self.rho, self.t_scale) / self.rho
            kernel = StudentKernel((self.rho + self.effective_dim) / 2, slope)
            pre = None
            if e.prior is not None:
                points = self._prior_points(e.prior.detach())
                prior_kernel = StudentKernel((self.rho + self.prior_effective_dim) / 2, slope)
                pre = Rows(points, prior_kernel, self._prior_bandwidth(points))
            power = self.prior_power if self.target == "prior" else 0.0
            given = Given(kernel, pre, self._target(e), power)
            return divergences(of_z, given, entropies=entropies)

        return e.cached((self, entropies), compute)

    def log_over_bank(
        self,
        rows: Float[Tensor, "view anchor width"],
        bank: Float[Tensor, "entry width"],
        itself: Bool[Tensor, "anchor entry"],
    ) -> Float[Tensor, "view anchor entry"]:
        """Student-t kernel of rows in the prior's space with a bank of the prior's features, as log-distributions.

        The scale is that of the bank. An anchor that is in the bank itself does not count. The last of the rows are the
        prior's, which determine the bandwidths if there are any.
        """
        scale = bank.var(0).mean().clamp_min(torch.finfo(bank.dtype).tiny).sqrt()
        factor = math.sqrt(self.prior_effective_dim / bank.shape[-1]) / scale
        distances = distances_between((rows - bank.mean(0)) * factor, (bank - bank.mean(0)) * factor)
        if self.prior_perplexity is not None:
            near = distances[-1].detach().masked_fill(itself, NO_NEIGHBOUR)
            distances = distances * bandwidths(near, self._log_prior_kernel, self.prior_perplexity).unsqueeze(1)
        return self._log_prior_kernel(distances).masked_fill(itself, LOG_ZERO).log_softmax(-1)

    def log_over_memory(self, e: Embeddings) -> tuple[Tensor, Tensor, Tensor]:
        """The target ``memory`` and ``dat`` over the memory's entries, as log-distributions, and the entries' images.

        Remembers the batch.
        """

        def compute() -> tuple[Tensor, Tensor, Tensor]:
            assert self.memory is not None
            u, indices = F.normalize(e.require("clean").detach(), dim=-1), e.require("indices")
            entries, remembered = self.memory(u, indices)
            ignored = (indices.unsqueeze(1) == remembered) | (remembered < 0)
            near = distances_between(u, entries).masked_fill(ignored, NO_NEIGHBOUR)
            near = near * bandwidths(near, log_gaussian, self.perplexity).unsqueeze(1)
            scale = math.sqrt(self.effective_dim)
            far = distances_between(self._points(e.z), entries * scale) * student_factor(self.rho, self.t_scale)
            log_dat = log_student(far, self.rho, self.effective_dim).masked_fill(ignored, LOG_ZERO).log_softmax(-1)
            log_cal = log_gaussian(near).masked_fill(ignored, LOG_ZERO).log_softmax(-1)
            return log_cal.expand_as(log_dat), log_dat, remembered

        return e.cached((self, "memory"), compute)

    def entropies(self, e: Embeddings) -> tuple[Tensor, Tensor, Tensor | None]:
        """Entropies of ``cal``, ``dat`` and, where there is a prior, ``pre``."""
        if self.reading == "paper":
            pre = None if e.prior is None else entropy(self.log_pre(e))
            return entropy(self.log_cal(e)), entropy(self.log_dat(e)), pre
        found = self.divergences(e, entropies=True)
        assert found.entropy_cal is not None
        assert found.entropy_dat is not None
        return found.entropy_cal, found.entropy_dat, found.entropy_pre

    def _target(self, e: Embeddings) -> Rows | None:
        """Points of the target; None if it is computed from z."""
        if self.target not in ("clean", "centre"):
            return None
        u = F.normalize(e.require("clean").detach(), dim=-1)
        centre = self.target == "centre"
        return e.cached((self, "target"), lambda: clean_target(u, self.perplexity, centre=centre))

    def _prior_bandwidth(self, points: Float[Tensor, "anchor width"]) -> Float[Tensor, " anchor"] | None:
        if self.prior_perplexity is None:
            return None
        return bandwidths_in_batch(points, self._log_prior_kernel, self.prior_perplexity)

    def _log_prior_kernel(self, distances: Tensor) -> Tensor:
        """Student-t kernel in the prior's space, of squared distances there."""
        return log_student(distances * student_factor(self.rho, self.t_scale), self.rho, self.prior_effective_dim)

    def _distances(self, e: Embeddings) -> Float[Tensor, "view anchor anchor"]:
        return e.cached((self, "distances"), lambda: squared_distances(self._points(e.z)))

    def _student_distribution(
        self, distances: Float[Tensor, "*view anchor anchor"], dim: float
    ) -> Float[Tensor, "*view anchor other"]:
        scaled = distances * student_factor(self.rho, self.t_scale)
        return self._normalised(log_student(scaled, self.rho, dim, divide=self.reading == "calibrated"))

    def _normalised(self, log_kernel: Float[Tensor, "*view anchor anchor"]) -> Float[Tensor, "*view anchor other"]:
        return (normalise_over_others if self.reading == "calibrated" else normalise_over_all)(log_kernel)

    def _points(self, z: Float[Tensor, "view anchor dim"]) -> Float[Tensor, "view anchor dim"]:
        """z in coordinates in which squared Euclidean distances are those of the Gaussian kernel."""
        if z.shape[1] < 2:
            raise ValueError(f"ADC compares images: it needs at least two in a batch, not {z.shape[1]}")
        if self.reading == "calibrated":
            z = F.normalize(z, dim=-1)
        if self.covariance == "sphere":
            return z * math.sqrt(self.effective_dim)
        if self.running is not None:
            covariance = self.running(z.detach().flatten(0, 1)).expand(len(z), -1, -1)
        else:
            source = z if self.reading == "calibrated" else z.detach()
            covariance = torch.stack([covariance_of(view) for view in source])
        whitened = torch.stack([_whiten(view, c) for view, c in zip(z, covariance, strict=True)])
        return whitened * math.sqrt(self.effective_dim / z.shape[-1]) if self.reading == "calibrated" else whitened

    def _prior_points(self, prior: Float[Tensor, "anchor width"]) -> Float[Tensor, "anchor width"]:
        """The prior's features in coordinates in which squared Euclidean distances are those of its kernel."""
        if self.reading == "paper":
            return _whiten(prior, covariance_of(prior))
        # One scale for all dimensions, the mean variance: identical images stay at distance zero.
        scale = prior.var(0).mean().clamp_min(torch.finfo(prior.dtype).tiny)
        return (prior - prior.mean(0)) / scale.sqrt() * math.sqrt(self.prior_effective_dim / prior.shape[-1])


def _whiten(z: Float[Tensor, "sample dim"], covariance: Float[Tensor, "dim dim"]) -> Float[Tensor, "sample dim"]:
    """Coordinates in which the Mahalanobis distance is Euclidean; a small ridge makes any covariance invertible.

    In float64: the ridge can be as small as 1e-4/dim of the largest eigenvalue, too small for float32 where z is wide.
    """
    dim, wide = z.shape[-1], torch.float32 if z.device.type == "mps" else torch.float64
    centred, covariance = (z - z.mean(0).detach()).to(wide), covariance.to(wide)
    ridge = 1e-4 * (covariance.diagonal().sum() / dim).clamp_min(1e-6)
    regular = covariance + ridge * torch.eye(dim, dtype=wide, device=z.device)
    factor, _ = torch.linalg.cholesky_ex(regular)  # does not wait for the device; z that is not finite gives nan
    whitened: Tensor = torch.linalg.solve_triangular(factor, centred.T, upper=False)
    return whitened.T.to(z.dtype)
