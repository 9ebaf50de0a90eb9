"""Squared distances, log kernels of them, and rows that are distributions over the other samples."""

import torch
from jaxtyping import Float
from torch import Tensor

from glf.config.training import TScale


def squared_distances(z: Float[Tensor, "*view sample dim"]) -> Float[Tensor, "*view sample sample"]:
    r"""All pairwise squared Euclidean distances.

    .. math:: D_{ij} = |z_i - z_j|^2 = |z_i|^2 + |z_j|^2 - 2 z_i^T z_j

    The samples are centred first: distances do not change, and a common offset would cost all the digits.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    z = z - z.mean(-2, keepdim=True).detach()
    square = z.pow(2).sum(-1)
    return (square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * z @ z.transpose(-1, -2)).clamp_min(0)


def off_diagonal(matrix: Float[Tensor, "*view row row"]) -> Float[Tensor, "*view row other"]:
    """Each row without its diagonal entry.

    >>> off_diagonal(torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]])).tolist()
    [[1.0, 2.0], [3.0, 5.0], [6.0, 7.0]]
    """
    n = matrix.shape[-1]
    # Drop the first entry; then every (n + 1)-th of what is left is a diagonal entry, at the end of a row.
    views = matrix.shape[:-2]
    rows = matrix.flatten(-2)[..., 1:].reshape(*views, n - 1, n + 1)[..., :-1]
    return rows.reshape(*views, n, n - 1)


def log_gaussian(distances: Float[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    r"""Log Gaussian kernel, up to the normaliser that rows divide away.

    .. math:: g = -\tfrac{1}{2} D

    Reference: Eq. 8. Differs from the paper: the minus sign is missing there.
    """
    return -distances / 2


def log_student(
    distances: Float[Tensor, "*rows"], rho: float, dim: float, *, divide: bool = True
) -> Float[Tensor, "*rows"]:
    r"""Log Student-t kernel, up to the normaliser that rows divide away.

    .. math:: t = -\frac{\rho + k}{2} \log\left(1 + \frac{D'}{\rho}\right)

    Reference: Eq. 9. Differs from the paper: 1/rho is missing there (``divide=False`` keeps it so).

    >>> round(float(log_student(torch.tensor(5.0), rho=5, dim=1)), 4)  # -3 log 2
    -2.0794
    """
    return -(rho + dim) / 2 * torch.log1p(distances / rho if divide else distances)


def student_factor(rho: float, t_scale: TScale) -> float:
    r"""What turns distances under the Gaussian's covariance into distances under the t's scale matrix.

    ``printed`` takes :math:`\Sigma' = \rho\Sigma/(\rho-2)` as the scale, as the paper does; ``scale`` takes
    :math:`\Sigma`; ``matched`` takes :math:`(\rho-2)\Sigma/\rho`, which gives the t the covariance
    :math:`\Sigma`.

    >>> student_factor(rho=5, t_scale="printed")
    0.6
    """
    return {"printed": (rho - 2) / rho, "scale": 1.0, "matched": rho / (rho - 2)}[t_scale]


def log_rows(kernel: Float[Tensor, "*view row row"]) -> Float[Tensor, "*view row other"]:
    """Log-distributions over the other samples: each row, without its anchor, sums to one.

    >>> log_rows(torch.zeros(3, 3)).exp().tolist()
    [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    return off_diagonal(kernel).log_softmax(-1)


def log_rows_with_anchor(kernel: Float[Tensor, "*view row row"]) -> Float[Tensor, "*view row other"]:
    """Rows normalised over all samples, the anchor then dropped: they sum to less than one (as printed).

    >>> log_rows_with_anchor(torch.zeros(4, 4)).exp()[0].tolist()
    [0.25, 0.25, 0.25]
    """
    return off_diagonal(kernel.log_softmax(-1))


def entropy(log_row: Float[Tensor, "*view row other"]) -> Float[Tensor, "*view row"]:
    r"""Entropy of each row in nats.

    .. math:: H_i = -\sum_{j \ne i} p_{ij} \log p_{ij}

    >>> round(float(entropy(torch.tensor([[0.5, 0.5]]).log())), 4)
    0.6931
    """
    return -(log_row.exp() * log_row).sum(-1)
