"""The teacher: a moving average of the student, without gradient."""

import copy
import math

import torch
from torch import Tensor, nn


class Teacher(nn.Module):
    """A copy of the student that follows it. Its batch normalisation sees its own batches."""

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.copy = copy.deepcopy(student).requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.copy(x)
        return out

    @torch.no_grad()
    def follow(self, student: nn.Module, momentum: float) -> None:
        """theta' <- m theta' + (1 - m) theta"""
        for mine, theirs in zip(self.copy.parameters(), student.parameters(), strict=True):
            mine.lerp_(theirs.detach().to(mine.dtype), 1 - momentum)


def momentum_at(progress: float, first: float, last: float) -> float:
    """The momentum at a fraction of training: a half cosine from first to last.

    >>> [round(momentum_at(t, 0.99, 1.0), 3) for t in (0.0, 0.5, 1.0)]
    [0.99, 0.995, 1.0]
    """
    return last - (last - first) * (1 + math.cos(math.pi * progress)) / 2
