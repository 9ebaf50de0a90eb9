"""One builder for projectors and predictors."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Heads:
    """What a method puts on top of the backbone."""

    projector: tuple[int, ...]  # widths after the backbone's; the last is the width of z
    norm: bool = True  # batch normalisation in the projector's hidden layers
    last_norm: bool = False  # and, without scale and shift, after its last
    predictor: tuple[int, ...] = ()  # hidden widths; the output is as wide as z
    fixed_predictor_lr: bool = False  # the predictor's learning rate does not decay
    prototypes: int = 0  # learnt directions that z is compared with
    frozen_prototypes: float = 0.0  # epochs until they begin to learn
    generator: tuple[int, ...] = ()  # hidden widths of what generates features from z
    local: tuple[int, ...] = ()  # widths of the projector of the backbone's map, cell by cell


def mlp(widths: tuple[int, ...], *, norm: bool = True, last_norm: bool = False) -> nn.Sequential:
    """Linear layers through these widths, batch normalisation and ReLU between them.

    ``last_norm`` adds a batch normalisation without scale and shift at the end, as SimSiam's projector has it.
    A linear layer that a normalisation follows has no bias of its own.

    >>> [type(layer).__name__ for layer in mlp((8, 4, 2))]
    ['Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = []
    for i, (width, following) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        normed = last_norm if last else norm
        layers.append(nn.Linear(width, following, bias=not normed))
        if normed:
            layers.append(nn.BatchNorm1d(following, affine=not last))
        if not last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


class Prototypes(nn.Module):
    """Learnt directions: unit vectors whatever the optimiser does to their lengths."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(F.normalize(torch.randn(count, width), dim=1))

    def forward(self) -> Float[Tensor, "prototype dim"]:
        return F.normalize(self.weight, dim=1)
