"""Log-determinants: coding length of two views (MEC), and of running covariances (CorInfoMax)."""

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
    r"""The orders from 2 on of the negative log-determinant of two views, scaled by its first order.

    .. math::
        -\frac{1}{m\lambda} \left(\log\det(I + \lambda P T^T) - \lambda \mathrm{Tr}(P T^T)\right)
        \approx -\frac{1}{m\lambda} \sum_{k=2}^{K} \frac{(-1)^{k+1}}{k} \mathrm{Tr}\left((\lambda P T^T)^k\right),
        \quad \lambda = \frac{d}{m \epsilon^2 \cdot \mathrm{slack}}

    for unit rows. The first order is the mean cosine, MEC's alignment. ``distortion`` is :math:`\epsilon^2`; ``order``
    0 takes the determinant itself. The series converges while the spectral radius of the product is below one: always
    when d is below ``distortion * slack``, else only while many directions are in use, which the warm-up's ``slack`` is
    to reach. Beyond, the truncated series falls without a bound, and training follows it (docs/methods.md).

    Reference: Liu et al. 2022 (MEC), Eq. 2 to 5, and its code for scale, order and :math:`\epsilon^2 = 64`.

    >>> one = torch.eye(2)
    >>> round(float(coding_length(one, one, distortion=2.0, order=2)), 4)  # 1/2 Tr((I/2)^2) / (2 * 1/2)
    0.25
    """
    m, d = p.shape
    scale = d / (m * distortion * slack)
    p, t = F.normalize(p, dim=-1), F.normalize(t, dim=-1)
    # Tr((P T^T)^k) = Tr((T^T P)^k): the smaller of the two products does.
    product = scale * (p @ t.T if m <= d else t.T @ p)
    if order == 0:
        sign, value = torch.linalg.slogdet(torch.eye(len(product), dtype=p.dtype, device=p.device) + product)
        if not bool(sign > 0):
            raise ValueError(
                f"the log-determinant of MEC is undefined here: det(I + lambda P T^T) is not positive, with lambda "
                f"{scale:.3g} for {m} rows of width {d}. Use the series (order 4), or a larger distortion"
            )
        higher: Tensor = -(value - product.trace()) / (m * scale)
        return higher
    power, total = product, torch.zeros_like(product[0, 0])
    for k in range(2, order + 1):
        power = power @ product
        total = total + (-1) ** (k + 1) / k * power.trace()
    return -total / (m * scale)


class CodingLength(Term):
    """MEC: the predictor's output and the teacher's of another view fill as many directions as they can.

    Over the first ``warmup_epochs`` the distortion falls from eight times its value, as in the authors' code.
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
    r"""Negative log-determinants, divided by the width: the sum over two views, twice the mean over more.

    .. math:: -\frac{2}{d V} \sum_v \log\det(R_v + \epsilon I)

    Reference: Ozsoy et al. 2022 (CorInfoMax), Eq. 9. By a Cholesky factor: a covariance is positive.

    >>> round(float(log_determinants(torch.eye(2).repeat(2, 1, 1) / torch.e)), 4)
    2.0
    """
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    factor, _ = torch.linalg.cholesky_ex(covariance + epsilon * identity)
    logarithms: Tensor = factor.diagonal(dim1=1, dim2=2).log()
    return -2 * 2 * logarithms.sum() / (len(covariance) * covariance.shape[-1])


class LogDeterminants(Term):
    """CorInfoMax: the views' running covariances keep their volume.

    ``old`` is the weight of the covariance so far: 0.01 in the authors' code, so a step hardly remembers. Computed in
    float64, as theirs.
    """

    name, role, formula = "log_determinants", "constrain", "-sum_v log det(R_v + epsilon I) / d"

    def __init__(self, old: float = 0.01, epsilon: float = 1e-8) -> None:
        super().__init__()
        self.old, self.epsilon = old, epsilon
        self.memory = RunningMoments(old)

    def forward(self, e: Embeddings) -> Scalar:
        precise = e.z if e.z.device.type == "mps" else e.z.double()  # Apple's GPUs have no float64
        return log_determinants(self.memory(precise), self.epsilon).to(e.z.dtype)
