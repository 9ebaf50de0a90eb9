"""Backbone, heads and teacher together; produces only what the objective needs."""

from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor, nn

from glf.nn.backbone import Backbone
from glf.nn.heads import Heads, mlp
from glf.nn.teacher import Teacher
from glf.types import Embeddings, Views


class Network(nn.Module):
    """Views in, Embeddings out. Views of one size go through the backbone as one batch."""

    def __init__(self, backbone: Backbone, heads: Heads, needs: frozenset[str]) -> None:
        super().__init__()
        self.needs = needs
        widths = (backbone.width, *heads.projector)
        head = mlp(widths, norm=heads.norm, last_norm=heads.last_norm)
        self.student = nn.Sequential(backbone, head)
        self.predictor = mlp((widths[-1], *heads.predictor, widths[-1])) if "p" in needs else None
        self.teacher = Teacher(self.student) if "teacher" in needs else None
        self.compiled: list[Callable[[Tensor], Tensor]] = []  # in a list, so that no checkpoint has it a second time

    @property
    def backbone(self) -> Backbone:
        """The student's backbone: what training is for."""
        backbone = self.student[0]
        assert isinstance(backbone, Backbone)
        return backbone

    def compile_backbone(self) -> None:
        """Let torch compile the backbone for training. Probes, with their own batch sizes, go on without."""
        self.compiled = [torch.compile(self.backbone)]

    def forward(self, views: Views) -> Embeddings:
        encode = self.compiled[0] if self.compiled else self.backbone
        h = torch.cat([encode(x) for x in _by_size(views.x)])
        count = len(views.x)
        z = _per_view(self.student[1](h), count)
        p = teacher = None
        if self.predictor is not None:  # from z as the terms see it, so that gradients at z include the predictor's
            p = _per_view(self.predictor(z.flatten(0, 1)), count)
        if self.teacher is not None:
            teacher = _per_view(torch.cat([self.teacher(x) for x in _by_size(views.x)]), count)
        return Embeddings(
            z=z,
            h=_per_view(h, count) if "h" in self.needs else None,
            p=p,
            teacher=teacher,
            prior=views.prior if "prior" in self.needs else None,
        )


def _by_size(x: tuple[Tensor, ...]) -> list[Tensor]:
    return [torch.cat(list(group)) for _, group in groupby(x, key=lambda view: view.shape[-2:])]


def _per_view(x: Tensor, count: int) -> Tensor:
    return x.reshape(count, -1, x.shape[-1])
