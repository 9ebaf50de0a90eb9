"""Squared distances, and the logarithms of the Gaussian and Student-t kernels of them.

Constant factors of a kernel do not matter: neighbours.py normalises the kernel values of each anchor to a distribution.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from glf.config.adc import TScale


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
