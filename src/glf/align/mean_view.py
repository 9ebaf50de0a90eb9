"""Distances of every view to the mean view of its image: squared (LeJEPA), or as a cosine (EMP-SSL)."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.terms import Term
from glf.types import Embeddings, Scalar

ViewsOfImages = Float[Tensor, "view batch dim"]


def mean_distance(z: ViewsOfImages, centre: Float[Tensor, "batch dim"]) -> Scalar:
    r"""Mean squared distance of the views to the centres of their images, over views, images and dimensions.

    .. math:: \frac{1}{Vnd} \sum_v \sum_i |z_{vi} - c_i|^2

    Reference: Balestriero and LeCun 2025 (LeJEPA), the prediction loss; over the width as in their code.

    >>> import torch
    >>> float(mean_distance(torch.tensor([[[3.0]], [[1.0]]]), torch.tensor([[2.0]])))
    1.0
    """
    return (z - centre).pow(2).mean()


class MeanDistance(Term):
    """Squared distance of every view to the mean of its image's full-size views (LeJEPA). Nothing is detached."""

    name, role, formula = "mean_distance", "align", "|z - mean_{full-size views} z|^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return mean_distance(e.z, e.z[: e.full].mean(0))


def mean_cosine(z: ViewsOfImages) -> Scalar:
    r"""Negative mean cosine of the views with the mean view of their image.

    .. math:: -\frac{1}{Vn} \sum_v \sum_i \cos\left(z_{vi}, \bar z_i\right),
        \quad \bar z_i = \frac{1}{V} \sum_w z_{wi}

    Reference: Tong et al. 2023 (EMP-SSL), the invariance term, with unit z; nothing is detached, as in their code.

    >>> import torch
    >>> round(float(mean_cosine(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))), 4)  # 45 degrees on either side
    -0.7071
    """
    return -F.cosine_similarity(z, z.mean(0, keepdim=True), dim=-1).mean()


class MeanCosine(Term):
    """Negative cosine of every view with the mean view of its image (EMP-SSL)."""

    name, role, formula = "mean_cosine", "align", "-cos(z, mean_views z)"

    def forward(self, e: Embeddings) -> Scalar:
        return mean_cosine(e.z)
