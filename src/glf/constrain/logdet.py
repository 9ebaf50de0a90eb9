"""Log-determinants: of two views' product (MEC), of running covariances (CorInfoMax), of second moments (EMP-SSL)."""

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


def coding_rate(z: Float[Tensor, "batch dim"], epsilon: float = 0.2) -> Scalar:
    r"""Negative total coding rate of unit embeddings.

    .. math:: -\frac{1}{2} \log\det\left(I + \frac{d}{n \epsilon} Z^T Z\right)

    Reference: Tong et al. 2023 (EMP-SSL), the total coding rate. Differs from the paper: epsilon is not squared, as in
    their code. By a Cholesky factor of the smaller one of two matrices with equal determinants.

    >>> round(float(coding_rate(torch.eye(2), epsilon=1.0)), 4)  # 2 I: -1/2 log 4
    -0.6931
    """
    n, d = z.shape
    product = z @ z.T if n <= d else z.T @ z
    identity = torch.eye(len(product), dtype=z.dtype, device=z.device)
    factor, _ = torch.linalg.cholesky_ex(identity + d / (n * epsilon) * product)
    logarithms: Tensor = factor.diagonal().log()
    return -logarithms.sum()


class CodingRate(Term):
    """EMP-SSL: maximises each view's total coding rate. Meant for unit embeddings (the transform Normalise)."""

    name, role, formula = "coding_rate", "constrain", "-log det(I + d / (n epsilon) Z^T Z) / 2"

    def __init__(self, epsilon: float = 0.2) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, e: Embeddings) -> Scalar:
        return mean(coding_rate(z, self.epsilon) for z in e.z)
