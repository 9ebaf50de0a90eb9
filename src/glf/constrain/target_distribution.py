"""The toy constraints of the paper's Figure 1: the batch is to be distributed like a given law.

Two samples are compared by the sliced Wasserstein distance, as Chen, Luo and Li do (2021, Intriguing Properties of
Contrastive Losses): along random directions both are sorted, and the order statistics are compared.
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

Sample = Float[Tensor, "sample dim"]


def sliced_wasserstein(z: Sample, target: Sample, directions: Float[Tensor, "dim slice"]) -> Scalar:
    r"""Mean squared distance of the order statistics along each direction.

    .. math:: \frac{1}{S} \sum_s \frac{1}{n} \sum_i \left((z w_s)_{(i)} - (x w_s)_{(i)}\right)^2

    Reference: Chen, Luo and Li 2021, Eq. 5, with as many samples x as there are z.

    >>> z = torch.tensor([[0.0], [2.0]])
    >>> float(sliced_wasserstein(z, torch.tensor([[3.0], [0.0]]), torch.ones(1, 1)))  # 0 to 0, 2 to 3
    0.5
    """
    return ((z @ directions).sort(0).values - (target @ directions).sort(0).values).pow(2).mean()


def sphere(z: Sample, generator: Generator) -> Sample:
    """(a) Uniform on the unit sphere."""
    return F.normalize(_normal(z.shape, z, generator), dim=-1)


def cube(z: Sample, generator: Generator) -> Sample:
    """(b) Uniform in the cube from -1 to 1."""
    return to_device(2 * torch.rand(z.shape, generator=generator) - 1, z.device).to(z.dtype)


def gaussian(z: Sample, generator: Generator) -> Sample:
    """(c) Gaussian with the sample's own mean and covariance. It forbids shapes, not collapse: a point is one."""
    return _like(z, len(z), generator)


def isotropic(z: Sample, generator: Generator) -> Sample:
    """(d) Gaussian with the sample's own mean and identity covariance."""
    return z.mean(0) + _normal(z.shape, z, generator)


def mixture(z: Sample, generator: Generator) -> Sample:
    """(e) Mixture of Gaussians: one per cluster that DBSCAN finds, with the cluster's mean, covariance and share.

    The radius is twice the median distance to the fifth neighbour; what is in no cluster is a component of its own.
    """
    label = dbscan(z)
    parts = [_like(z[label == one], int((label == one).sum()), generator) for one in torch.unique(label)]
    return torch.cat(parts)


def dbscan(z: Sample, neighbours: int = 5) -> Int[Tensor, " sample"]:
    """Clusters by density, -1 for none, by scikit-learn on the CPU."""
    from sklearn.cluster import DBSCAN

    rows = z.double().cpu()
    near = torch.cdist(rows, rows).topk(min(neighbours + 1, len(rows)), largest=False).values[:, -1]
    radius = max(2 * float(near.median()), 1e-12)
    found = DBSCAN(eps=radius, min_samples=neighbours).fit_predict(rows.numpy())
    return torch.from_numpy(found).long().to(z.device)


def _like(z: Sample, count: int, generator: Generator) -> Sample:
    """Gaussian with the mean and covariance of z: random combinations of its centred rows, nothing to factorise."""
    mixing = _normal((count, len(z)), z, generator) / math.sqrt(max(len(z) - 1, 1))
    return z.mean(0) + mixing @ (z - z.mean(0))


def _normal(shape: tuple[int, ...], like: Tensor, generator: Generator) -> Tensor:
    return to_device(torch.randn(shape, generator=generator), like.device).to(like.dtype)


class TargetDistribution(NamedTuple):
    """What a batch may be distributed like."""

    sample: Callable[[Sample, Generator], Sample]
    words: str
    variance: Callable[[int], float] = lambda dim: 1.0  # along a direction: the unit of the distance
    # Beside alignment alone, by its share of the gradient: 60 to 90 %, less of which lets the batch collapse.
    weight: float = 5.0

    def __call__(self, z: Sample, generator: Generator) -> Sample:
        return self.sample(z, generator)


TARGET_DISTRIBUTIONS = {
    "sphere": TargetDistribution(sphere, "the uniform law on the unit sphere", lambda dim: 1 / dim),
    "cube": TargetDistribution(cube, "the uniform law in the cube from -1 to 1", lambda dim: 1 / 3),
    "gaussian": TargetDistribution(gaussian, "a Gaussian of the batch's mean and covariance"),
    "isotropic": TargetDistribution(isotropic, "a Gaussian of the batch's mean and identity covariance", weight=1.0),
    "mixture": TargetDistribution(mixture, "a mixture of Gaussians, one per cluster of the batch"),
}


class MatchDistribution(Term):
    """The embeddings of each view are distributed like ``law``; on the sphere, their directions are.

    The law's own moments and clusters are those of the batch, held fixed. Directions and samples are drawn anew at
    every step, alike on all processes. As ADC, it reads z before any map: behind a whitening there is nothing to say.

    The distance is in units of the law's variance along a direction, which on the sphere is one over the width: else
    a wide sphere would weigh next to nothing, and an alignment beside it would collapse.
    """

    role = "constrain"
    reads_raw = True

    def __init__(self, law: str, slices: int = 128) -> None:
        super().__init__()
        self.law, self.slices = law, slices
        self.name = law  # type: ignore[misc]
        self.formula = f"sliced Wasserstein distance to {TARGET_DISTRIBUTIONS[law].words}, over its variance"  # type: ignore[misc]
        self.draws = Draws()

    def forward(self, e: Embeddings) -> Scalar:
        generator = self.draws.generator()
        views = F.normalize(e.z, dim=-1) if self.law == "sphere" else e.z
        directions = F.normalize(_normal((e.z.shape[2], self.slices), e.z, generator), dim=0)
        law = TARGET_DISTRIBUTIONS[self.law]
        distances = (sliced_wasserstein(z, law(z.detach(), generator), directions) for z in views)
        return mean(distances) / law.variance(e.z.shape[2])
