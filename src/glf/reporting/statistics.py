"""Differences between runs that share everything but one thing."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple

from scipy.stats import t as student


class Paired(NamedTuple):
    """A mean difference and its confidence interval; no interval from a single pair."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def shown(self) -> bool:
        """Whether the interval leaves zero out; two equal differences may be chance, whatever the formula says."""
        return self.pairs > 2 and (self.low > 0 or self.high < 0)


def paired(base: Sequence[float], other: Sequence[float], confidence: float = 0.95) -> Paired:
    r"""Student's interval of the differences, pair by pair.

    .. math:: \bar d \pm t_{n-1, (1+c)/2} \frac{s_d}{\sqrt n}

    >>> found = paired([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])  # differences 1, 2, 3: 2 +- 4.303 / sqrt(3)
    >>> [round(x, 3) for x in found[:3]], found.shown
    ([2.0, -0.484, 4.484], False)
    """
    differences = [b - a for a, b in zip(base, other, strict=True)]
    count = len(differences)
    if count < 2:
        return Paired(mean(differences), -math.inf, math.inf, count)
    reach = float(student.ppf((1 + confidence) / 2, count - 1)) * stdev(differences) / math.sqrt(count)
    return Paired(mean(differences), mean(differences) - reach, mean(differences) + reach, count)
