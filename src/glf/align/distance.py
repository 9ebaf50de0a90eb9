"""Distances between two views of the same images: MSE, cosine, unit distance, diagonal of the cross-correlation."""

from itertools import combinations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.similarity import MatchedCells, correlation_of_views
from glf.terms import Tempered, Term, mean
from glf.types import Embeddings, Scalar


def mse(z0: Float[Tensor, "batch dim"], z1: Float[Tensor, "batch dim"]) -> Scalar:
    r"""Mean squared error over images and dimensions.

    .. math:: \frac{1}{nd} \sum_i |z_i - z'_i|^2

    Reference: Bardes et al. 2022 (VICReg), Eq. 5, divided by d as in their code.

    >>> import torch
    >>> float(mse(torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 1.0]])))
    2.0
    """
    return (z0 - z1).pow(2).mean()


class MSE(Term):
    """Mean squared error between views (VICReg)."""

    name, role, formula = "mse", "align", "|z - z'|^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return mean(mse(e.z[v], e.z[w]) for v, w in combinations(range(len(e.z)), 2))


class LocalMSE(MatchedCells):
    """VICRegL: mean squared error of matched cells. Twice the mean over sets, that is, the sum over both matchings.

    Reference: Bardes et al. 2022 (VICRegL), Eq. 3 to 5, as lightly does and the authors' code since December 2022.
    Before, it overwrote the sum in its loop over pairs of views.
    """

    name, role, formula = "local_mse", "align", "|cell_i - cell'_match(i)|^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return 2 * mean(mse(a.flatten(0, 1), b.flatten(0, 1)) for a, b in self.matches(e))


def cosine(z0: Float[Tensor, "batch dim"], z1: Float[Tensor, "batch dim"], temperature: float = 1.0) -> Scalar:
    r"""Negative cosine similarity over a temperature: the numerator of InfoNCE.

    .. math:: -\frac{1}{n\tau} \sum_i \frac{z_i^T z'_i}{|z_i||z'_i|}

    Reference: Chen et al. 2020 (SimCLR), Eq. 1; the first term of the paper's Eq. 2.

    >>> import torch
    >>> float(cosine(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]), temperature=0.5))
    -2.0
    """
    similarity = (F.normalize(z0, dim=-1) * F.normalize(z1, dim=-1)).sum(-1)
    return -similarity.mean() / temperature


class Cosine(Tempered):
    """Negative cosine similarity between views, over a temperature (SimCLR)."""

    name, role, formula = "cosine", "align", "-cos(z, z') / temperature"

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__(temperature)

    def forward(self, e: Embeddings) -> Scalar:
        pairs = combinations(range(len(e.z)), 2)
        return mean(cosine(e.z[v], e.z[w], self.temperature) for v, w in pairs)


def unit_distance(z0: Float[Tensor, "batch dim"], z1: Float[Tensor, "batch dim"]) -> Scalar:
    r"""Mean squared distance between unit vectors: 2 - 2 cos.

    .. math:: \frac{1}{n} \sum_i \left| \frac{z_i}{|z_i|} - \frac{z'_i}{|z'_i|} \right|^2

    Reference: Grill et al. 2020 (BYOL), Eq. 2; Ermolov et al. 2021 (W-MSE), Eq. 6.

    >>> import torch
    >>> float(unit_distance(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]])))
    2.0
    """
    return (F.normalize(z0, dim=-1) - F.normalize(z1, dim=-1)).pow(2).sum(-1).mean()


class UnitDistance(Term):
    """Squared distance between the views' unit vectors (W-MSE)."""

    name, role, formula = "unit_distance", "align", "|unit z - unit z'|^2"

    def forward(self, e: Embeddings) -> Scalar:
        return mean(unit_distance(e.z[v], e.z[w]) for v, w in combinations(range(len(e.z)), 2))


def diagonal(correlation: Float[Tensor, "dim dim"]) -> Scalar:
    r"""Squared distance of the diagonal of the cross-correlation from one.

    .. math:: \sum_i (1 - C_{ii})^2

    For standardised embeddings :math:`1 - C_{ii}` is half the mean squared distance between the views in dimension i,
    so this is an alignment.

    Reference: Zbontar et al. 2021 (Barlow Twins), Eq. 1, invariance term.

    >>> import torch
    >>> float(diagonal(torch.tensor([[1.0, 9.0], [9.0, 0.5]])))
    0.25
    """
    return (1 - correlation.diagonal()).pow(2).sum()


class Diagonal(Term):
    """Pulls the diagonal of the views' cross-correlation to one (Barlow Twins)."""

    name, role, formula = "diagonal", "align", "sum_i (1 - C_ii)^2"

    def forward(self, e: Embeddings) -> Scalar:
        pairs = combinations(range(len(e.z)), 2)
        return mean(diagonal(correlation_of_views(e, v, w)) for v, w in pairs)
