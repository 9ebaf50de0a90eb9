"""Every anchor's view of the other samples, as ADC has it: three families of rows, under one choice of kernel."""

import math
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.config.base import nearest
from glf.config.training import CovarianceKind, Reading, TScale
from glf.constrain.adc import kernels
from glf.constrain.adc.blockwise import Divergences, Student, divergences
from glf.nn.memory import RunningCovariance, covariance_of
from glf.terms import configuration
from glf.types import Embeddings


class NeighbourDistributions(torch.nn.Module):
    """The three families of rows, under one choice of kernel.

    ``calibrated`` puts z on the unit sphere and measures distances under ``covariance`` (``sphere``: I/k, that of
    the uniform distribution on it; ``batch``: estimated and differentiated; ``running``), scaled to an effective
    dimension, because in high dimension rows of the full one are one-hot or flat. ``paper`` keeps what is
    printed: z as it is, a detached estimate of the covariance (``batch`` or ``running``), the full dimension, no
    1/rho, rows normalised with their anchor.
    """

    def __init__(
        self,
        *,
        rho: float = 5.0,
        effective_dim: float = 8.0,
        prior_effective_dim: float = 16.0,
        t_scale: TScale = "printed",
        reading: Reading = "calibrated",
        covariance: CovarianceKind | None = None,
    ) -> None:
        super().__init__()
        for value, kind in ((t_scale, TScale), (reading, Reading), (covariance or "sphere", CovarianceKind)):
            if value not in get_args(kind):
                raise ValueError(f"unknown {value!r}{nearest(value, get_args(kind))} (one of {get_args(kind)})")
        if rho <= 2:
            raise ValueError(f"rho must be above 2 (the t has no covariance otherwise), not {rho}")
        if min(effective_dim, prior_effective_dim) <= 0:
            raise ValueError(f"effective dimensions must be positive: {effective_dim}, {prior_effective_dim}")
        self.rho, self.t_scale, self.reading = rho, t_scale, reading
        self.effective_dim, self.prior_effective_dim = effective_dim, prior_effective_dim
        self.covariance: CovarianceKind = covariance or ("sphere" if reading == "calibrated" else "batch")
        if reading == "paper" and self.covariance == "sphere":
            raise ValueError("the paper's reading estimates its covariance: 'batch' or 'running', not 'sphere'")
        self.running = RunningCovariance() if self.covariance == "running" else None

    def extra_repr(self) -> str:
        return configuration(self)

    def divergences(self, e: Embeddings, *, entropies: bool = False) -> Divergences:
        """Everything the calibrated terms need, in one pass over all pairs: computed once for DCM and LPM."""
        return e.cached((self, entropies), lambda: self._pass(e, entropies))

    def _pass(self, e: Embeddings, entropies: bool) -> Divergences:
        points, student = self._points(e.z), self._student(self.effective_dim)
        prior = None if e.prior is None else self._prior_points(e.prior.detach())
        return divergences(points, student, prior, self._student(self.prior_effective_dim), entropies=entropies)

    def cal(self, e: Embeddings) -> Float[Tensor, "view anchor other"]:
        """Log Gaussian rows of z, without gradient: Eq. 11, left."""
        return self._log_rows(kernels.log_gaussian(self._distances(e))).detach()

    def dat(self, e: Embeddings) -> Float[Tensor, "view anchor other"]:
        """Log t rows of z: Eq. 11, right."""
        dim = self.effective_dim if self.reading == "calibrated" else float(e.z.shape[-1])
        return e.cached((self, "dat"), lambda: self._log_rows(self._log_student(self._distances(e), dim)))

    def pre(self, e: Embeddings) -> Float[Tensor, "anchor other"]:
        """Log t rows of the prior's features, shared by all views: Eq. 15."""
        prior = e.require("prior").detach()
        dim = self.prior_effective_dim if self.reading == "calibrated" else float(prior.shape[-1])

        def rows() -> Tensor:
            return self._log_rows(self._log_student(kernels.squared_distances(self._prior_points(prior)), dim))

        return e.cached((self, "pre"), rows)

    def _distances(self, e: Embeddings) -> Float[Tensor, "view anchor anchor"]:
        return e.cached((self, "distances"), lambda: kernels.squared_distances(self._points(e.z)))

    def _prior_points(self, prior: Float[Tensor, "anchor width"]) -> Float[Tensor, "anchor width"]:
        """The prior's features, scaled so that their squared distances are those of the rows."""
        if self.reading == "paper":
            return _whiten(prior, covariance_of(prior))
        # One isotropic scale: the mean variance of a dimension. Identical images are at distance zero.
        scale = prior.var(0).mean().clamp_min(torch.finfo(prior.dtype).tiny)
        return (prior - prior.mean(0)) / scale.sqrt() * math.sqrt(self.prior_effective_dim / prior.shape[-1])

    def _points(self, z: Float[Tensor, "view anchor dim"]) -> Float[Tensor, "view anchor dim"]:
        """z in coordinates in which squared distances are the Gaussian's."""
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

    def _student(self, dim: float) -> Student:
        return Student((self.rho + dim) / 2, kernels.student_factor(self.rho, self.t_scale) / self.rho)

    def _log_student(self, distances: Float[Tensor, "*rows"], dim: float) -> Float[Tensor, "*rows"]:
        scaled = distances * kernels.student_factor(self.rho, self.t_scale)
        return kernels.log_student(scaled, self.rho, dim, divide=self.reading == "calibrated")

    def _log_rows(self, kernel: Float[Tensor, "*view row row"]) -> Float[Tensor, "*view row other"]:
        if self.reading == "calibrated":
            return kernels.log_rows(kernel)
        return kernels.log_rows_with_anchor(kernel)


def _whiten(z: Float[Tensor, "sample dim"], covariance: Float[Tensor, "dim dim"]) -> Float[Tensor, "sample dim"]:
    """Coordinates in which the Mahalanobis distance is Euclidean; a singular covariance gets a small ridge.

    In float64: the ridge is 1e-4/dim of the largest eigenvalue at worst, which float32 cannot resolve for wide z.
    """
    dim, wide = z.shape[-1], torch.float32 if z.device.type == "mps" else torch.float64
    centred, covariance = (z - z.mean(0).detach()).to(wide), covariance.to(wide)
    ridge = 1e-4 * (covariance.diagonal().sum() / dim).clamp_min(1e-6)
    factor = torch.linalg.cholesky(covariance + ridge * torch.eye(dim, dtype=wide, device=z.device))
    whitened: Tensor = torch.linalg.solve_triangular(factor, centred.T, upper=False)
    return whitened.T.to(z.dtype)
