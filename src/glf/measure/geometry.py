"""The shape of a cloud of features, without labels."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from glf.align.distance import unit_distance
from glf.measure import batch
from glf.measure.blocks import blocks, unit_blocks


def effective_rank(features: Float[Tensor, "sample dim"]) -> float:
    r"""How many directions the centred features use: the exponential of the entropy of their spectrum.

    .. math:: \exp\left(-\sum_i p_i \log p_i\right), \quad p_i = \sigma_i^2 / \sum_j \sigma_j^2

    It is between 1 and the smaller of the width and the number of samples less one; a constant cloud has 0.

    Reference: Roy and Vetterli 2007, The effective rank, on the eigenvalues of the covariance.

    >>> effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    2.0
    """
    power = spectrum(features)
    return round(_perplexity(power), 4) if power.sum() > 0 else 0.0


def spectrum(features: Float[Tensor, "sample dim"]) -> Float[Tensor, " value"]:
    r"""Share of the centred features' variance along each of their principal directions, the largest first.

    .. math:: p_i = \sigma_i^2 / \sum_j \sigma_j^2

    A constant cloud has zeros.

    >>> spectrum(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])).tolist()
    [0.9, 0.1]
    """
    centre = torch.stack([part.sum(0) for _, part in blocks(features)]).sum(0) / len(features)
    power = _singular_values(features, centre).pow(2)
    if power.sum() <= 1e-12 * (power.sum() + len(features) * centre.pow(2).sum()).clamp_min(1e-300):
        return torch.zeros_like(power)
    return power / power.sum()


def full_rank(samples: int, width: int) -> float:
    r"""The effective rank that so many samples of an even cloud have: what theirs is to be judged by.

    .. math:: a e^{-a / 2b}, \quad a = \min(n - 1, d), \quad b = \max(n - 1, d)

    Few samples have few directions whatever they come from, and even many have a spectrum that is not flat.

    Reference: Page 1993, Average entropy of a subsystem: log a - a / 2b is the mean entropy of the spectrum of a
    centred Gaussian sample, to the leading order.

    >>> round(full_rank(65, 64), 4)  # 64 / sqrt(e), not 64
    38.818
    """
    few, many = sorted((samples - 1, width))
    return few * math.exp(-few / (2 * many))


def rank_me(features: Float[Tensor, "sample dim"]) -> float:
    r"""The same of the singular values themselves, about the origin: RankMe.

    .. math:: \exp\left(-\sum_k p_k \log p_k\right), \quad p_k = \sigma_k / \sum_j \sigma_j

    It is between 1 and the smaller of the width and the number of samples; features that are all zero have 0.
    A common offset is one strong direction, so of features after a ReLU it is far below the effective rank of
    standardised ones.

    Reference: Garrido et al. 2023 (RankMe), Eq. 1 and 2.
    Differs from the paper: no 1e-7 is added to p, which sums to one then; 0 log 0 is 0.

    >>> round(rank_me(torch.tensor([[3.0, 0.0], [0.0, 1.0]])), 4)  # p is 3/4 and 1/4: 4 / 3^(3/4)
    1.7548
    """
    values = _singular_values(features, features.new_zeros(features.shape[1], dtype=torch.float64))
    return _perplexity(values) if values.sum() > 0 else 0.0


def _singular_values(features: Tensor, centre: Tensor) -> Float[Tensor, " value"]:
    """Those of the centred rows: of the triangle that is left of them, which each block updates and no square blurs."""
    triangle = centre.new_empty(0, len(centre))
    for _, part in blocks(features):
        triangle = torch.linalg.qr(torch.cat((triangle, part - centre)), mode="r").R
    values: Tensor = torch.linalg.svdvals(triangle)
    return values


def _perplexity(values: Tensor) -> float:
    p = values / values.sum()
    return float(torch.special.entr(p).sum().exp())


def spread(features: Float[Tensor, "sample dim"]) -> float:
    """Standard deviation of unit features, relative to that of a uniform cloud: 1 is spread out, 0 is collapsed.

    >>> spread(torch.ones(4, 2))
    0.0
    """
    return round(float(batch.spread(features.double())), 4)


def alignment(a: Float[Tensor, "sample dim"], b: Float[Tensor, "sample dim"]) -> float:
    r"""Mean squared distance of two views' unit features: 0 where they agree, 2 where they have nothing in common.

    .. math:: \frac{1}{n} \sum_i \left| \frac{a_i}{|a_i|} - \frac{b_i}{|b_i|} \right|^2

    Reference: Wang and Isola 2020, the alignment loss with exponent 2.

    >>> alignment(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[5.0, 0.0], [1.0, 0.0]]))  # 0 and 2
    1.0
    """
    pairs = zip(blocks(a), blocks(b), strict=True)
    return float(sum(unit_distance(x, y) * len(x) for (_, x), (_, y) in pairs)) / len(a)


def uniformity(features: Float[Tensor, "sample dim"], t: float = 2.0) -> float:
    r"""Logarithm of the mean Gaussian potential between distinct unit features: 0 is one point, lower is more even.

    .. math:: \log \frac{2}{n(n-1)} \sum_{i < j} \exp\left(-t |u_i - u_j|^2\right), \quad u_i = \frac{x_i}{|x_i|}

    It is at least -4t; a uniform cloud of high dimension has about -2t.

    Reference: Wang and Isola 2020, the uniformity loss; as in their code, no sample is paired with itself.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [0.0, 3.0]])), 4)  # one pair, its squared distance is 2
    -4.0
    """
    n = len(features)
    if n < 2:
        raise ValueError(f"uniformity is about pairs of samples, there is {n}: give at least 2")
    sums = []
    for rows, left in unit_blocks(features):
        for others, right in unit_blocks(features[rows.start :]):
            squares = left.pow(2).sum(1, keepdim=True) + right.pow(2).sum(1)
            potential = -t * (squares - 2 * left @ right.T).clamp_min(0)
            if others.start == 0:  # the block with itself: each pair once, no sample with itself
                potential = potential.masked_fill(torch.ones_like(potential, dtype=torch.bool).tril(), -torch.inf)
            sums.append(potential.logsumexp((0, 1)))
    return float(torch.stack(sums).logsumexp(0)) - math.log(n * (n - 1) / 2)
