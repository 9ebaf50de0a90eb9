"""State that a loss carries from step to step. It is made of buffers, so every checkpoint holds it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


def covariance_of(z: Float[Tensor, "sample dim"]) -> Float[Tensor, "dim dim"]:
    """The unbiased covariance of the rows.

    >>> covariance_of(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).tolist()
    [[2.0, 0.0], [0.0, 0.0]]
    """
    centred = z - z.mean(0)
    return centred.T @ centred / max(len(z) - 1, 1)


class RunningCovariance(nn.Module):
    """An exponential average of batch covariances. The width is learnt from the first batch."""

    covariance: Tensor

    def __init__(self, momentum: float = 0.99) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("covariance", torch.empty(0, 0))

    def forward(self, z: Float[Tensor, "sample dim"]) -> Float[Tensor, "dim dim"]:
        """Take the batch in (in training) and return the average."""
        now = covariance_of(z.detach())
        if self.covariance.numel() == 0:
            self.covariance = now
        elif self.training and torch.is_grad_enabled():  # a look without gradients leaves no trace
            self.covariance = torch.lerp(now, self.covariance.to(now), self.momentum)
        return self.covariance

    def _load_from_state_dict(self, state_dict: Any, prefix: Any, *args: Any, **kwargs: Any) -> None:
        # A fresh module has an empty buffer: take the saved one's shape before torch compares them.
        saved = state_dict.get(prefix + "covariance")
        if saved is not None and saved.shape != self.covariance.shape:
            self.covariance = self.covariance.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
