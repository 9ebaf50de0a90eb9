"""Constraints on the first and second moments of the batch: VICReg, VICRegL, Barlow Twins, TiCo."""

from dataclasses import replace
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.nn.memory import RunningSecondMoments
from glf.similarity import MatchedCells, correlation_of_views, off_diagonal
from glf.terms import EmbeddingTransform, Term, mean
from glf.types import Embeddings, Scalar


def variance(z: Float[Tensor, "batch *cell dim"], floor: float = 1.0, epsilon: float = 1e-4) -> Scalar:
    r"""Hinge on each dimension's standard deviation.

    .. math:: \frac{1}{d} \sum_j \max\left(0, \gamma - \sqrt{\mathrm{Var}(z^j) + \epsilon}\right)

    Reference: Bardes et al. 2022 (VICReg), Eq. 1 and 2, with the unbiased variance. For local features, the mean over
    cells.

    >>> round(float(variance(torch.zeros(4, 2))), 4)
    0.99
    """
    return (floor - (z.var(0) + epsilon).sqrt()).relu().mean()


class Variance(Term):
    """Keeps the standard deviation of every dimension at or above ``floor``."""

    name, role, formula = "variance", "constrain", "max(0, 1 - std z^j)"

    def __init__(self, floor: float = 1.0, epsilon: float = 1e-4) -> None:
        super().__init__()
        self.floor, self.epsilon = floor, epsilon

    def forward(self, e: Embeddings) -> Scalar:
        return mean(variance(z, self.floor, self.epsilon) for z in e.z)


def covariance(z: Float[Tensor, "batch *cell dim"]) -> Scalar:
    r"""Sum of squared off-diagonal covariances, over the width.

    .. math:: \frac{1}{d} \sum_{i \ne j} \mathrm{Cov}(z)_{ij}^2

    Reference: Bardes et al. 2022 (VICReg), Eq. 3 and 4.

    >>> float(covariance(torch.tensor([[1.0, 1.0], [-1.0, -1.0]])))  # both off-diagonal entries are 2
    4.0
    """
    centred = (z - z.mean(0)).reshape(len(z), -1, z.shape[-1])
    matrices = torch.einsum("bcd,bce->cde", centred, centred) / (len(z) - 1)
    return off_diagonal(matrices).pow(2).sum((1, 2)).mean() / z.shape[-1]


class Covariance(Term):
    """Decorrelates dimensions. The mean over views, so VICReg, which sums over two views, uses twice its weight."""

    name, role, formula = "covariance", "constrain", "sum_{i != j} Cov(z)_ij^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return mean(covariance(z) for z in e.z)


def standardise(z: Float[Tensor, "batch dim"], epsilon: float = 1e-5) -> Float[Tensor, "batch dim"]:
    r"""Each dimension with zero mean and unit (biased) variance over the batch, as in batch normalisation.

    >>> standardise(torch.tensor([[1.0], [3.0]])).round(decimals=3).flatten().tolist()
    [-1.0, 1.0]
    """
    return (z - z.mean(0)) / (z.var(0, unbiased=False) + epsilon).sqrt()


class Standardise(EmbeddingTransform):
    """Standardises each view over the batch with its own statistics, as in the code of Barlow Twins.

    Statistics pooled over both views would give a different loss where the views differ in mean or scale. lightly 1.6
    also standardises each branch separately (tests/test_peers.py).
    """

    formula = "standardisation of each view over the batch"

    def forward(self, e: Embeddings) -> Embeddings:
        return replace(e, z=torch.stack([standardise(z) for z in e.z]))


class Normalise(EmbeddingTransform):
    """Scales every embedding to unit length."""

    formula = "scaling of z to unit length"

    def forward(self, e: Embeddings) -> Embeddings:
        return replace(e, z=F.normalize(e.z, dim=-1))


def redundancy(correlation: Float[Tensor, "dim dim"]) -> Scalar:
    r"""Sum of squared off-diagonal cross-correlations.

    .. math:: \sum_{i \ne j} C_{ij}^2

    Reference: Zbontar et al. 2021 (Barlow Twins), Eq. 1, redundancy reduction term.

    >>> float(redundancy(torch.tensor([[9.0, 1.0], [2.0, 9.0]])))
    5.0
    """
    return off_diagonal(correlation).pow(2).sum()


class Redundancy(Term):
    """Pushes the off-diagonal of the views' cross-correlation to zero (Barlow Twins)."""

    name, role, formula = "redundancy", "constrain", "sum_{i != j} C_ij^2"

    def forward(self, e: Embeddings) -> Scalar:
        pairs = combinations(range(len(e.z)), 2)
        return mean(redundancy(correlation_of_views(e, v, w)) for v, w in pairs)


def second_moment(z: Float[Tensor, "batch dim"], moments: Float[Tensor, "dim dim"]) -> Scalar:
    r"""Mean squared length of the embeddings in the metric of given second moments: large along crowded directions.

    .. math:: \frac{1}{n} \sum_i z_i^T C z_i

    Reference: Zhu et al. 2022 (TiCo), the covariance contrast loss without rho.

    >>> float(second_moment(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.5]])))
    3.0
    """
    return (z @ moments * z).sum(-1).mean()


class SecondMoment(Term):
    """TiCo: pushes embeddings out of the directions that earlier batches and this one use most.

    Each view has running second moments of its own; ``old`` is the weight of their previous value. No gradient passes
    through them. Meant for unit embeddings (the transform Normalise).
    """

    name, role, formula = "second_moment", "constrain", "z^T C z, C the running mean of z z^T"

    def __init__(self, old: float = 0.9) -> None:
        super().__init__()
        self.old = old
        self.memory = RunningSecondMoments(old)

    def forward(self, e: Embeddings) -> Scalar:
        return mean(second_moment(z, moments) for z, moments in zip(e.z, self.memory(e.z), strict=True))


class LocalVariance(MatchedCells):
    """VICRegL: keeps the standard deviation of every dimension of every matched cell over the batch."""

    name, role, formula = "local_variance", "constrain", "max(0, 1 - std cell^j)"

    def forward(self, e: Embeddings) -> Scalar:
        return 2 * mean(variance(x) for pair in self.matches(e) for x in pair)


class LocalCovariance(MatchedCells):
    """VICRegL: decorrelates the dimensions of every matched cell over the batch."""

    name, role, formula = "local_covariance", "constrain", "sum_{i != j} Cov(cell)_ij^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return 2 * mean(covariance(x) for pair in self.matches(e) for x in pair)
