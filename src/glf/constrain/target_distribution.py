"""Target distributions for the batch: the constraints of the paper's Figure 1.

The batch is compared with a sample of the target distribution by the sliced Wasserstein distance, as in Chen, Luo and
Li 2021 (Intriguing Properties of Contrastive Losses): both are projected onto random directions and sorted, and the
order statistics are compared.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from glf.device import to_device
from glf.nn.memory import Draws
from glf.terms import Term, mean
from glf.types import Embeddings, Scalar

Samples = Float[Tensor, "sample dim"]


def sliced_wasserstein(z: Samples, target: Samples, directions: Float[Tensor, "dim slice"]) -> Scalar:
    r"""Mean squared distance between the order statistics of two samples along given directions.

    .. math:: \frac{1}{S} \sum_s \frac{1}{n} \sum_i \left((z w_s)_{(i)} - (x w_s)_{(i)}\right)^2

    Reference: Chen, Luo and Li 2021, Eq. 5, with as many samples x as z.

    >>> z = torch.tensor([[0.0], [2.0]])
    >>> float(sliced_wasserstein(z, torch.tensor([[3.0], [0.0]]), torch.ones(1, 1)))  # 0 to 0, 2 to 3
    0.5
    """
    return ((z @ directions).sort(0).values - (target @ directions).sort(0).values).pow(2).mean()


def sphere(z: Samples, generator: Generator) -> Samples:
    """(a) Uniform distribution on the unit sphere."""
    return F.normalize(_normal(z.shape, z, generator), dim=-1)


def cube(z: Samples, generator: Generator) -> Samples:
    """(b) Uniform distribution in the cube from -1 to 1."""
    return to_device(2 * torch.rand(z.shape, generator=generator) - 1, z.device).to(z.dtype)


def gaussian(z: Samples, generator: Generator) -> Samples:
    """(c) Gaussian with the mean and covariance of z. Does not prevent collapse: a single point matches it."""
    return _gaussian_like(z, generator)


def isotropic(z: Samples, generator: Generator) -> Samples:
    """(d) Gaussian with the mean of z and identity covariance."""
    return z.mean(0) + _normal(z.shape, z, generator)


def mixture(z: Samples, generator: Generator) -> Samples:
    """(e) Mixture of isotropic Gaussians, one per DBSCAN cluster of z, with the mean and the size of the cluster.

    The paper computes "cluster-wise means" and constructs "isotropic Gaussians per cluster". It estimates no variance,
    so every component has identity covariance, as in (d); (d) is the case of a single cluster. The radius is twice the
    median distance to the fifth neighbour, and samples outside all clusters form one more component: the paper states
    neither.
    """
    label = dbscan(z)
    return torch.cat([isotropic(z[label == one], generator) for one in torch.unique(label)])


def dbscan(z: Samples, neighbours: int = 5) -> Int[Tensor, " sample"]:
    """Density-based clusters, -1 for none, by scikit-learn on the CPU."""
    from sklearn.cluster import DBSCAN

    samples = z.double().cpu()
    near = torch.cdist(samples, samples).topk(min(neighbours + 1, len(samples)), largest=False).values[:, -1]
    radius = max(2 * float(near.median()), 1e-12)
    label = DBSCAN(eps=radius, min_samples=neighbours).fit_predict(samples.numpy())
    return torch.from_numpy(label).long().to(z.device)


def _gaussian_like(z: Samples, generator: Generator) -> Samples:
    """Gaussian samples with the mean and covariance of z, as random combinations of the centred z: no factorisation."""
    mixing = _normal((len(z), len(z)), z, generator) / math.sqrt(max(len(z) - 1, 1))
    return z.mean(0) + mixing @ (z - z.mean(0))


def _normal(shape: tuple[int, ...], like: Tensor, generator: Generator) -> Tensor:
    return to_device(torch.randn(shape, generator=generator), like.device).to(like.dtype)


class TargetDistribution(NamedTuple):
    """A distribution that the batch should have. ``sample`` draws as many samples as z has."""

    sample: Callable[[Samples, Generator], Samples]
    description: str
    variance: Callable[[int], float] = lambda dim: 1.0  # along a direction, by dimension: the unit of the distance
    # Gives 60 to 90 % of the gradient at z next to alignment alone (means over three epochs of the recipe tiny on
    # fashion-mini: 72 % sphere, 73 % cube, 79 % isotropic and mixture). With much less the batch collapses.
    weight: float = 5.0


TARGET_DISTRIBUTIONS = {
    "sphere": TargetDistribution(sphere, "the uniform distribution on the unit sphere", lambda dim: 1 / dim),
    "cube": TargetDistribution(cube, "the uniform distribution in the cube from -1 to 1", lambda dim: 1 / 3),
    "gaussian": TargetDistribution(gaussian, "a Gaussian with the batch's mean and covariance"),
    "isotropic": TargetDistribution(isotropic, "a Gaussian with the batch's mean and identity covariance", weight=1.0),
    "mixture": TargetDistribution(
        mixture, "a mixture of isotropic Gaussians of unit variance, one per cluster of the batch", weight=1.0
    ),
}


class MatchDistribution(Term):
    """Sliced Wasserstein distance of each view's embeddings to a target distribution (``sphere``: of their directions).

    Moments and clusters of the target come from the batch, without gradient. Directions and samples are drawn again at
    every step, equally on all processes. Like ADC, the term reads z before any transform: after a whitening it would
    have nothing to constrain.

    The distance is in units of the target's variance along a direction, which is one over the width for the sphere.
    Without this, the weight of a wide sphere would be negligible, and aligning terms would collapse.
    """

    role = "constrain"
    reads_raw = True

    def __init__(self, target: str, slices: int = 128) -> None:
        super().__init__()
        self.target, self.slices = target, slices
        self.name = target  # type: ignore[misc]
        distribution = TARGET_DISTRIBUTIONS[target].description
        self.formula = f"sliced Wasserstein distance to {distribution}, over its variance"  # type: ignore[misc]
        self.draws = Draws()

    def forward(self, e: Embeddings) -> Scalar:
        generator = self.draws.generator()
        views = F.normalize(e.z, dim=-1) if self.target == "sphere" else e.z
        directions = F.normalize(_normal((e.z.shape[2], self.slices), e.z, generator), dim=0)
        target = TARGET_DISTRIBUTIONS[self.target]
        distances = (sliced_wasserstein(z, target.sample(z.detach(), generator), directions) for z in views)
        return mean(distances) / target.variance(e.z.shape[2])
