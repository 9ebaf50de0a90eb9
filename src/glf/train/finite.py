"""Where training first was not finite: noted on the device at every step, read only when somebody asks."""

from collections.abc import Mapping

import torch
from torch import Tensor

NEVER = 2**62


class FirstBad:
    """The first step at which each of some tensors was not finite.

    >>> bad = FirstBad()
    >>> for step, value in enumerate((1.0, torch.inf, torch.nan)):
    ...     bad.note(step, {"z": torch.ones(2, 2), "align/cosine": torch.tensor(value)})
    >>> bad.steps()
    {'align/cosine': 1}
    """

    def __init__(self) -> None:
        self.first: dict[tuple[str, ...], Tensor] = {}

    def note(self, step: int, values: Mapping[str, Tensor]) -> None:
        """A few operations on as many numbers as there are tensors; the same names together at every step."""
        numbers = [value.detach().abs().amax() if value.ndim else value.detach() for value in values.values()]
        now = torch.where(torch.stack([number.float() for number in numbers]).isfinite(), NEVER, step)
        names = tuple(values)
        self.first[names] = torch.minimum(self.first[names], now) if names in self.first else now

    def steps(self) -> dict[str, int]:
        """Those that have been bad, and since when. This waits for the device."""
        found = {n: s for names, first in self.first.items() for n, s in zip(names, first.tolist(), strict=True)}
        return {name: step for name, step in found.items() if step < NEVER}
