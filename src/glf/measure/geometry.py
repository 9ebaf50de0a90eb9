"""Geometry of features without labels: rank, spread, alignment, uniformity."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from glf.align.distance import unit_distance
from glf.measure.batch import relative_spread
from glf.measure.blocks import TooFewError, blocks, unit_blocks


def effective_rank(features: Float[Tensor, "sample dim"]) -> float:
    r"""Number of directions that the centred features use: the exponential of their spectrum's entropy.

    .. math:: \exp\left(-\sum_i p_i \log p_i\right), \quad p_i = \sigma_i^2 / \sum_j \sigma_j^2

    Between 1 and the smaller of the width and the number of samples less one; 0 for constant features.

    Reference: Roy and Vetterli 2007, The effective rank, on the eigenvalues of the covariance.

    >>> effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    2.0
    """
    power = spectrum(features)
    return round(_perplexity(power), 4) if power.sum() > 0 else 0.0


def spectrum(features: Float[Tensor, "sample dim"]) -> Float[Tensor, " value"]:
    r"""Share of the centred features' variance along each principal direction, largest first.

    .. math:: p_i = \sigma_i^2 / \sum_j \sigma_j^2

    All zero for constant features.

    >>> spectrum(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])).tolist()
    [0.9, 0.1]
    """
    centre = torch.stack([part.sum(0) for _, part in blocks(features)]).sum(0) / len(features)
    power = _singular_values(features, centre).pow(2)
    if power.sum() <= 1e-12 * (power.sum() + len(features) * centre.pow(2).sum()).clamp_min(1e-300):
        return torch.zeros_like(power)
    return power / power.sum()


def full_rank(samples: int, width: int) -> float:
    r"""Effective rank of isotropic Gaussian samples of this number and width: a reference for `effective_rank`.

    .. math:: a e^{-a / 2b}, \quad a = \min(n - 1, d), \quad b = \max(n - 1, d)

    A small sample has few directions whatever its distribution, and the spectrum of a large one is not flat either.

    Reference: Page 1993, Average entropy of a subsystem: log a - a / 2b is the mean entropy of the spectrum of a
    centred Gaussian sample, to the leading order.

    >>> round(full_rank(65, 64), 4)  # 64 / sqrt(e), not 64
    38.818
    """
    few, many = sorted((samples - 1, width))
    return few * math.exp(-few / (2 * many))


def rank_me(features: Float[Tensor, "sample dim"]) -> float:
    r"""RankMe: the exponential of the entropy of the singular values, without centring.

    .. math:: \exp\left(-\sum_k p_k \log p_k\right), \quad p_k = \sigma_k / \sum_j \sigma_j

    Between 1 and the smaller of the width and the number of samples; 0 for features that are all zero.
    A common offset is one strong direction, so after a ReLU it is far below the effective rank of standardised
    features.

    Reference: Garrido et al. 2023 (RankMe), Eq. 1 and 2.
    Differs from the paper: no 1e-7 is added to p, so that p sums to one; 0 log 0 is 0.

    >>> round(rank_me(torch.tensor([[3.0, 0.0], [0.0, 1.0]])), 4)  # p is 3/4 and 1/4: 4 / 3^(3/4)
    1.7548
    """
    values = _singular_values(features, features.new_zeros(features.shape[1], dtype=torch.float64))
    return _perplexity(values) if values.sum() > 0 else 0.0


def _singular_values(features: Tensor, centre: Tensor) -> Float[Tensor, " value"]:
    """Singular values of the centred features, by QR decompositions block by block: squares would lose digits."""
    triangle = centre.new_empty(0, len(centre))
    for _, part in blocks(features):
        triangle = torch.linalg.qr(torch.cat((triangle, part - centre)), mode="r").R
    values: Tensor = torch.linalg.svdvals(triangle)
    return values


def _perplexity(values: Tensor) -> float:
    p = values / values.sum()
    return float(torch.special.entr(p).sum().exp())


def spread(features: Float[Tensor, "sample dim"]) -> float:
    """Standard deviation of unit features relative to the uniform distribution: 1 is spread out, 0 is collapsed.

    >>> spread(torch.ones(4, 2))
    0.0
    """
    return round(float(relative_spread(features.double())), 4)


def alignment(a: Float[Tensor, "sample dim"], b: Float[Tensor, "sample dim"]) -> float:
    r"""Mean squared distance of two views' unit features: 0 if they are equal, 2 if they are independent.

    .. math:: \frac{1}{n} \sum_i \left| \frac{a_i}{|a_i|} - \frac{b_i}{|b_i|} \right|^2

    Reference: Wang and Isola 2020, the alignment loss with exponent 2.

    >>> alignment(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[5.0, 0.0], [1.0, 0.0]]))  # 0 and 2
    1.0
    """
    pairs = zip(blocks(a), blocks(b), strict=True)
    return float(sum(unit_distance(x, y) * len(x) for (_, x), (_, y) in pairs)) / len(a)


def uniformity(features: Float[Tensor, "sample dim"], t: float = 2.0) -> float:
    r"""Logarithm of the mean Gaussian potential of pairs of unit features: 0 is one point, lower is more uniform.

    .. math:: \log \frac{2}{n(n-1)} \sum_{i < j} \exp\left(-t |u_i - u_j|^2\right), \quad u_i = \frac{x_i}{|x_i|}

    At least -4t; about -2t for the uniform distribution in high dimension.

    Reference: Wang and Isola 2020, the uniformity loss; as in their code, no sample is paired with itself.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [0.0, 3.0]])), 4)  # one pair, its squared distance is 2
    -4.0
    """
    n = len(features)
    if n < 2:
        raise TooFewError(f"uniformity needs at least 2 samples, not {n}")
    sums = []
    for here, left in unit_blocks(features):
        for there, right in unit_blocks(features[here.start :]):
            squares = left.pow(2).sum(1, keepdim=True) + right.pow(2).sum(1)
            potential = -t * (squares - 2 * left @ right.T).clamp_min(0)
            if there.start == 0:  # a block with itself: each pair once, no sample with itself
                potential = potential.masked_fill(torch.ones_like(potential, dtype=torch.bool).tril(), -torch.inf)
            sums.append(potential.logsumexp((0, 1)))
    return float(torch.stack(sums).logsumexp(0)) - math.log(n * (n - 1) / 2)
