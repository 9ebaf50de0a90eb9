"""Paired differences between runs, with confidence intervals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from glf.measure.intervals import t_interval


class PairedDifference(NamedTuple):
    """Mean difference of paired values and its confidence interval; a single pair has an infinite interval."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0; with fewer than three pairs never, because two may agree by chance."""
        return self.pairs > 2 and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        """The difference as the tables show it.

        >>> str(PairedDifference(1.0, 0.5, 1.5, 3)), str(PairedDifference(0.2, -1.0, 1.4, 3))
        ('+1.00 [0.50, 1.50]', '+0.20, n.s. [-1.00, 1.40]')
        """
        interval = "" if math.isinf(self.low) else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.mean:+.2f}{'' if self.significant else ', n.s.'}{interval}"


def paired_difference(base: Sequence[float], other: Sequence[float], confidence: float = 0.95) -> PairedDifference:
    """Student's t-interval of the differences ``other - base``, pair by pair.

    >>> found = paired_difference([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])  # differences 1, 2, 3: 2 +- 4.303 / sqrt(3)
    >>> [round(x, 3) for x in found[:3]], found.significant
    ([2.0, -0.484, 4.484], False)
    """
    differences = [b - a for a, b in zip(base, other, strict=True)]
    return PairedDifference(*t_interval(differences, confidence), len(differences))
