"""Projectors, predictors, prototypes and classifiers of images on top of the backbone."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The heads of a method."""

    projector: tuple[int, ...]  # widths after the backbone's; the last is the width of z
    norm: bool = True  # batch normalisation in the projector's hidden layers
    last_norm: bool = False  # batch normalisation without scale and shift after the projector's last layer
    predictor: tuple[int, ...] = ()  # hidden widths; the output has the width of z
    fixed_predictor_lr: bool = False  # the predictor's learning rate does not decay
    prototypes: int = 0  # number of learnt directions that z is compared with
    frozen_prototypes: float = 0.0  # epochs during which the prototypes are frozen
    generator: tuple[int, ...] = ()  # hidden widths of the feature generator, which maps z to z's width (MetAug)
    local: tuple[int, ...] = ()  # widths of the local projector, applied to each cell of the feature map (VICRegL)


def mlp(widths: tuple[int, ...], *, norm: bool = True, last_norm: bool = False) -> nn.Sequential:
    """Linear layers of these widths with batch normalisation and ReLU between them.

    ``last_norm`` adds a batch normalisation without scale and shift at the end, as in SimSiam's projector. A linear
    layer followed by a normalisation has no bias.

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
    """Learnt directions, normalised to unit length at every use."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(F.normalize(torch.randn(count, width), dim=1))

    def forward(self) -> Float[Tensor, "prototype dim"]:
        return F.normalize(self.weight, dim=1)


class InstanceClassifier(nn.Module):
    """A linear classifier with one output per training image, in the order of their positions in the data set."""

    def __init__(self, width: int, rows: Int[Tensor, " image"]) -> None:
        super().__init__()
        self.linear = nn.Linear(width, len(rows))
        self.rows: Tensor
        self.register_buffer("rows", rows.sort().values)

    def forward(self, z: Float[Tensor, "view batch dim"]) -> Float[Tensor, "view batch image"]:
        scores: Tensor = self.linear(z)
        return scores

    def instances(self, indices: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Positions of images of the data set among the training images."""
        return torch.searchsorted(self.rows, indices)
