"""The shape of a cloud of features, without labels."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def effective_rank(features: Float[Tensor, "sample dim"]) -> float:
    r"""How many directions the centred features use: the exponential of the entropy of their spectrum.

    .. math:: \exp\left(-\sum_i p_i \log p_i\right), \quad p_i = \sigma_i^2 / \sum_j \sigma_j^2

    It is between 1 and the smaller of the width and the number of samples less one; a constant cloud has 0.

    Reference: Roy and Vetterli 2007, The effective rank, on the eigenvalues of the covariance.

    >>> effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    2.0
    """
    centred = (features - features.mean(0)).double()
    power = torch.linalg.svdvals(centred).pow(2)
    if power.sum() <= 1e-12 * features.double().pow(2).sum().clamp_min(1e-300):
        return 0.0
    p = power / power.sum()
    return round(float((-(p * p.clamp_min(1e-300).log()).sum()).exp()), 4)


def spread(features: Float[Tensor, "sample dim"]) -> float:
    """Standard deviation of unit features, relative to that of a uniform cloud: 1 is spread out, 0 is collapsed.

    >>> spread(torch.ones(4, 2))
    0.0
    """
    unit = F.normalize(features.double(), dim=1)
    deviation = unit.std(0, unbiased=False).mean() * features.shape[1] ** 0.5
    return round(float(deviation), 4)
