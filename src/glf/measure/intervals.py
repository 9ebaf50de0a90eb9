"""Confidence intervals of a mean."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from scipy.stats import t as student


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    r"""Mean of some values and the ends of Student's t-interval, which are infinite for a single value.

    .. math:: \bar x \pm t_{n-1, (1+c)/2} \frac{s}{\sqrt n}

    >>> [round(x, 3) for x in t_interval([1.0, 2.0, 3.0])]  # 2 +- 4.303 / sqrt(3)
    [2.0, -0.484, 4.484]
    """
    centre, count = mean(values), len(values)
    if count < 2:
        return centre, -math.inf, math.inf
    reach = float(student.ppf((1 + confidence) / 2, count - 1)) * stdev(values) / math.sqrt(count)
    return centre, centre - reach, centre + reach
