"""Divergences of two distributions per anchor: KL, reverse KL, Jensen-Shannon, total variation."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from glf.constrain.adc.equations import FLOOR

LogRows = Float[Tensor, "anchor entry"]
PerAnchor = Float[Tensor, " anchor"]


def kl(log_p: LogRows, log_q: LogRows) -> PerAnchor:
    r"""KL divergence of the target p from q: q must cover what p has.

    .. math:: \mathrm{KL}(p_i | q_i) = \sum_j p_{ij} \log \frac{p_{ij}}{q_{ij}}

    >>> p, q = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    >>> round(float(kl(p.clamp_min(1e-30).log(), q.log())), 4)  # log(2)
    0.6931
    """
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def reverse_kl(log_p: LogRows, log_q: LogRows) -> PerAnchor:
    r"""KL divergence of q from the target p: q must not have what p lacks. p has a floor of 1e-8.

    .. math:: \mathrm{KL}(q_i | p_i) = \sum_j q_{ij} \log \frac{q_{ij}}{\max(p_{ij}, 10^{-8})}

    >>> p, q = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
    >>> round(float(reverse_kl(p.log(), q.log())), 4)  # log(2)/2 + log(2/3)/2
    0.1438
    """
    return (log_q.exp() * (log_q - log_p.clamp_min(math.log(FLOOR)))).sum(-1)


def jensen_shannon(log_p: LogRows, log_q: LogRows) -> PerAnchor:
    r"""Jensen-Shannon divergence, at most log 2: a single anchor cannot dominate.

    .. math:: \tfrac{1}{2} \mathrm{KL}(p_i | m_i) + \tfrac{1}{2} \mathrm{KL}(q_i | m_i), \quad m_i = (p_i + q_i) / 2

    >>> p, q = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(float(jensen_shannon(p.clamp_min(1e-30).log(), q.clamp_min(1e-30).log())), 4)  # log(2)
    0.6931
    """
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return (kl(log_p, log_m) + kl(log_q, log_m)) / 2


def total_variation(log_p: LogRows, log_q: LogRows) -> PerAnchor:
    r"""Total variation: half of the sum of absolute differences, at most 1.

    .. math:: \tfrac{1}{2} \sum_j |p_{ij} - q_{ij}|

    >>> p, q = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]])
    >>> round(float(total_variation(p.clamp_min(1e-30).log(), q.log())), 4)
    0.75
    """
    return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl,
    "reverse": reverse_kl,
    "js": jensen_shannon,
    "tv": total_variation,
}
