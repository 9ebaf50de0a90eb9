"""Squared distances, and the logarithms of the Gaussian and Student-t kernels of them.

Constant factors of a kernel do not matter: neighbours.py normalises the kernel values of each anchor to a distribution.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from glf.config.adc import TScale

LOG_BANDWIDTHS = (-12.0, 12.0)  # range of the bandwidth's logarithm, relative to one over the anchor's mean distance
NO_NEIGHBOUR = 1e30  # squared distance to an entry that does not count, such as the anchor itself
HALVINGS = 24  # of that range: three digits more than float32 distances have


def squared_distances(z: Float[Tensor, "*view sample dim"]) -> Float[Tensor, "*view sample sample"]:
    r"""All pairwise squared Euclidean distances.

    .. math:: D_{ij} = |z_i - z_j|^2 = |z_i|^2 + |z_j|^2 - 2 z_i^T z_j

    The samples are centred first. This does not change distances, and without it a large common offset would cancel
    most significant digits.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    z = z - z.mean(-2, keepdim=True).detach()
    square = z.pow(2).sum(-1)
    return (square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * z @ z.transpose(-1, -2)).clamp_min(0)


def distances_between(
    points: Float[Tensor, "*view anchor dim"], entries: Float[Tensor, "entry dim"]
) -> Float[Tensor, "*view anchor entry"]:
    """Squared Euclidean distances of points to entries, both centred by the mean of the entries first.

    >>> distances_between(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0]]
    """
    centre = entries.mean(0).detach()
    points, entries = points - centre, entries - centre
    squares = points.pow(2).sum(-1, keepdim=True) + entries.pow(2).sum(-1)
    return (squares - 2 * points @ entries.T).clamp_min(0)


def log_gaussian(distances: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Log Gaussian kernel, up to a constant.

    .. math:: g = -\tfrac{1}{2} D

    Reference: Eq. 8. Differs from the paper: the minus sign is missing there.
    """
    return -distances / 2


def log_student(
    distances: Float[Tensor, "*shape"], rho: float, dim: float, *, divide: bool = True
) -> Float[Tensor, "*shape"]:
    r"""Log Student-t kernel, up to a constant.

    .. math:: t = -\frac{\rho + k}{2} \log\left(1 + \frac{D'}{\rho}\right)

    ``distances`` are :math:`D'`, squared distances under the scale matrix of the t (`student_factor`). The training
    loss evaluates the same kernel in ``blockwise.StudentKernel``: change both.

    Reference: Eq. 9. Differs from the paper: 1/rho is missing there (``divide=False`` leaves it out).

    >>> round(float(log_student(torch.tensor(5.0), rho=5, dim=1)), 4)  # -3 log 2
    -2.0794
    """
    return -(rho + dim) / 2 * torch.log1p(distances / rho if divide else distances)


def student_factor(rho: float, t_scale: TScale) -> float:
    r"""Factor from squared distances under the Gaussian's covariance to those under the scale matrix of the t.

    ``printed`` uses :math:`\Sigma' = \rho\Sigma/(\rho-2)` as the scale matrix, as the paper does; ``scale`` uses
    :math:`\Sigma`; ``matched`` uses :math:`(\rho-2)\Sigma/\rho`, with which the covariance of the t is
    :math:`\Sigma`.

    >>> student_factor(rho=5, t_scale="printed")
    0.6
    """
    return {"printed": (rho - 2) / rho, "scale": 1.0, "matched": rho / (rho - 2)}[t_scale]


@torch.no_grad()
def bandwidths(
    distances: Float[Tensor, "anchor entry"], log_kernel: Callable[[Tensor], Tensor], perplexity: float
) -> Float[Tensor, " anchor"]:
    r"""Factor :math:`s_i` of each anchor's squared distances that gives its distribution a certain perplexity.

    .. math:: \exp H(p_i) = \text{perplexity}, \quad p_i(j) \propto \exp \text{log\_kernel}(s_i D_{ij})

    By bisection: the entropy falls as :math:`s_i` grows. Entries that do not count have the distance
    `NO_NEIGHBOUR`. An anchor that cannot have the perplexity (fewer entries, or more copies of itself) gets the end of
    the range that is nearest to it.

    >>> s = bandwidths(torch.tensor([[1.0, 4.0, 9.0]]), log_gaussian, 2.0)
    >>> p = log_gaussian(s.unsqueeze(1) * torch.tensor([[1.0, 4.0, 9.0]])).softmax(1)
    >>> round(float((-p * p.log()).sum().exp()), 4)
    2.0
    """
    counts = distances < NO_NEIGHBOUR
    mean = (distances * counts).sum(-1) / counts.sum(-1).clamp_min(1)
    unit = 1 / mean.clamp_min(torch.finfo(distances.dtype).tiny ** 0.5)
    low, high = (torch.full_like(unit, end) for end in LOG_BANDWIDTHS)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        log_p = log_kernel((unit * middle.exp()).unsqueeze(-1) * distances).log_softmax(-1)
        flat = -(log_p.exp() * log_p).sum(-1) > math.log(perplexity)
        low, high = torch.where(flat, middle, low), torch.where(flat, high, middle)
    return unit * ((low + high) / 2).exp()
