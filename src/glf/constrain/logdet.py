"""Log-determinants: of the product of two views (MEC), and of running covariances (CorInfoMax)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.nn.memory import RunningMoments
from glf.terms import Term, cross_view_pairs, mean
from glf.types import Embeddings, Scalar


def coding_length(
    p: Float[Tensor, "batch dim"],
    t: Float[Tensor, "batch dim"],
    distortion: float = 64.0,
    order: int = 4,
    slack: float = 1.0,
) -> Scalar:
    r"""Negative coding length of two views from second order on, in units of its first order.

    .. math::
        -\frac{1}{m\lambda} \left(\log\det(I + \lambda P T^T) - \lambda \mathrm{Tr}(P T^T)\right)
        \approx -\frac{1}{m\lambda} \sum_{k=2}^{K} \frac{(-1)^{k+1}}{k} \mathrm{Tr}\left((\lambda P T^T)^k\right),
        \quad \lambda = \frac{d}{m \epsilon^2 \cdot \mathrm{slack}}

    for unit embeddings. The first order is the mean cosine, MEC's alignment. ``distortion`` is :math:`\epsilon^2`;
    ``order=0`` computes the determinant itself. The series converges while the spectral radius of the product is below
    one: always if d is below ``distortion * slack``, otherwise only while z uses many directions, which the ``slack``
    of the warm-up should achieve. Where it does not converge, the truncated series has no lower bound, and training
    diverges (docs/methods.md).

    Reference: Liu et al. 2022 (MEC), Eq. 2 to 5; scale, order and :math:`\epsilon^2 = 64` as in its code.

    >>> one = torch.eye(2)
    >>> round(float(coding_length(one, one, distortion=2.0, order=2)), 4)  # 1/2 Tr((I/2)^2) / (2 * 1/2)
    0.25
    """
    m, d = p.shape
    scale = d / (m * distortion * slack)
    p, t = F.normalize(p, dim=-1), F.normalize(t, dim=-1)
    # Tr((P T^T)^k) = Tr((T^T P)^k): use the smaller of the two products.
    product = scale * (p @ t.T if m <= d else t.T @ p)
    if order == 0:
        sign, value = torch.linalg.slogdet(torch.eye(len(product), dtype=p.dtype, device=p.device) + product)
        if not bool(sign > 0):
            raise ValueError(
                f"MEC's log-determinant is undefined: det(I + lambda P T^T) is not positive (lambda {scale:.3g}, {m} "
                f"embeddings of width {d}). Use the series (order 4), or a larger distortion"
            )
        higher: Tensor = -(value - product.trace()) / (m * scale)
        return higher
    power, total = product, torch.zeros_like(product[0, 0])
    for k in range(2, order + 1):
        power = power @ product
        total = total + (-1) ** (k + 1) / k * power.trace()
    return -total / (m * scale)


class CodingLength(Term):
    """MEC: maximises the coding length of the predictor's output of a view and the teacher's of another.

    Over the first ``warmup_epochs`` epochs the distortion decreases from eight times its value, as in the authors'
    code.
    """

    name, role = "coding_length", "constrain"
    formula = "-(log det(I + l P T^T) - l Tr P T^T) / (m l), l = d / (m distortion)"
    needs = frozenset({"z", "p", "teacher"})

    def __init__(self, distortion: float = 64.0, order: int = 4, warmup_epochs: float = 10.0) -> None:
        super().__init__()
        self.distortion, self.order, self.warmup_epochs = distortion, order, warmup_epochs

    def forward(self, e: Embeddings) -> Scalar:
        p, teacher = e.require("p"), e.require("teacher").detach()
        slack = 8 - 7 * min(1.0, self.epoch / self.warmup_epochs) if self.warmup_epochs else 1.0
        pairs = cross_view_pairs(p, teacher)
        return mean(coding_length(p[v], teacher[w], self.distortion, self.order, slack) for v, w in pairs)


def log_determinants(covariance: Float[Tensor, "view dim dim"], epsilon: float = 1e-8) -> Scalar:
    r"""Negative log-determinants over the width: the sum over two views, or twice the mean over more.

    .. math:: -\frac{2}{d V} \sum_v \log\det(R_v + \epsilon I)

    Reference: Ozsoy et al. 2022 (CorInfoMax), Eq. 9, by Cholesky factors.

    >>> round(float(log_determinants(torch.eye(2).repeat(2, 1, 1) / torch.e)), 4)
    2.0
    """
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    factor, _ = torch.linalg.cholesky_ex(covariance + epsilon * identity)
    logarithms: Tensor = factor.diagonal(dim1=1, dim2=2).log()
    return -2 * 2 * logarithms.sum() / (len(covariance) * covariance.shape[-1])


class LogDeterminants(Term):
    """CorInfoMax: maximises the log-determinants of the views' running covariances.

    ``old`` is the weight of the previous covariance: 0.01 in the authors' code, so the current batch dominates.
    Computed in float64, as in their code.
    """

    name, role, formula = "log_determinants", "constrain", "-sum_v log det(R_v + epsilon I) / d"

    def __init__(self, old: float = 0.01, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.old, self.epsilon = old, epsilon
        self.memory = RunningMoments(old)

    def forward(self, e: Embeddings) -> Scalar:
        precise = e.z if e.z.device.type == "mps" else e.z.double()  # MPS has no float64
        return log_determinants(self.memory(precise), self.epsilon).to(e.z.dtype)
