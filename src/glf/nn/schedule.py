"""Learning-rate schedule shared by pretraining, fine-tuning and detection."""

import math
from collections.abc import Callable


def warmup_cosine(warmup: int, total: int) -> Callable[[int], float]:
    """Factor of the learning rate at each step: linear warm-up, then half a cosine down to zero.

    >>> [round(warmup_cosine(2, 6)(step), 3) for step in (0, 1, 2, 4, 6)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup))) / 2

    return factor
