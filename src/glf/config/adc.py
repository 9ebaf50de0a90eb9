"""Options of ADC and its two terms. Their defaults are defined here only."""

from dataclasses import dataclass, replace
from typing import Literal

from glf.config.bounds import check_options

TScale = Literal["printed", "scale", "matched"]
Reading = Literal["calibrated", "paper"]
CovarianceKind = Literal["sphere", "batch", "running"]
LpmAt = Literal["z", "h", "bank"]
Target = Literal["own", "clean", "memory", "centre", "prior"]
LPM_WEIGHTS: dict[LpmAt, float] = {"z": 1.0, "h": 1.0, "bank": 10.0}  # chosen on held-out images


@dataclass(frozen=True, kw_only=True)
class _Weights:
    nu: float = 0.3
    """Weight of DCM."""
    upsilon: float | None = None
    """Weight of LPM; default: 1, over the bank 10."""
    ramp_epochs: float = 0.0
    """Epochs over which the weight of DCM rises from zero to nu."""
    lpm_at: LpmAt | None = None
    """What LPM reads: z, among the images of the batch; a linear head on the backbone's features, among the batch (h);
    or that head, among the prior's features of all images (bank). Default: z."""


@dataclass(frozen=True, kw_only=True)
class NeighbourOptions:
    """Options of the neighbour distributions that DCM and LPM compare."""

    rho: float = 5.0
    """Degrees of freedom of the Student-t kernel, above 2."""
    effective_dim: float = 8.0
    """Effective dimension of the embeddings' kernels."""
    prior_effective_dim: float = 16.0
    """Effective dimension of the prior's kernel."""
    t_scale: TScale = "printed"
    """Scale matrix of the Student-t."""
    reading: Reading = "calibrated"
    """Our calibrated form of the paper's equations, or the equations as printed."""
    covariance: CovarianceKind | None = None
    """Covariance of the kernels; default: sphere when calibrated, batch as printed."""
    target: Target | None = None
    """Target of DCM: Gaussian distributions of z itself (own); of the embeddings of the unaugmented images, within the
    batch (clean), over those of the last batches (memory), or of their neighbourhoods' centres (centre); or own,
    multiplied by the prior's (prior). Default: own."""
    perplexity: float | None = None
    """Perplexity of the targets clean, memory and centre, which sets the bandwidth of each anchor; default: 10."""
    memory_size: int | None = None
    """Embeddings of unaugmented images that the target memory keeps; default: 4,096."""
    prior_power: float | None = None
    """Exponent of the prior's distributions in the target prior; default: 1."""
    prior_perplexity: float | None = None
    """Perplexity of the prior's distributions, which sets the bandwidth of each anchor; default: one scale for all."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class AdcOptions(NeighbourOptions, _Weights):
    """Options of the constraints +dcm, +lpm and +adc (docs/equations.md)."""

    @property
    def lpm_weight(self) -> float:
        """The weight of LPM: upsilon, or the default of its place."""
        return LPM_WEIGHTS[self.lpm_at or "z"] if self.upsilon is None else self.upsilon

    def resolved(self) -> "AdcOptions":
        """The options with the weight of LPM in the place of an unset upsilon."""
        return replace(self, upsilon=self.lpm_weight)
