"""One builder for projectors and predictors."""

from dataclasses import dataclass
from itertools import pairwise

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Heads:
    """What a method puts on top of the backbone."""

    projector: tuple[int, ...]  # widths after the backbone's; the last is the width of z
    norm: bool = True  # batch normalisation in the projector's hidden layers
    last_norm: bool = False  # and, without scale and shift, after its last
    predictor: tuple[int, ...] = ()  # hidden widths; the output is as wide as z
    fixed_predictor_lr: bool = False  # the predictor's learning rate does not decay


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
