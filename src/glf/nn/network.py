"""The teacher: a moving average of the student, without gradient."""
# MERGED DOCS:
# | """Backbone, heads and teacher together; produces only what the objective needs."""

import copy
import math
from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor, nn

from glf.nn.backbone import Backbone
from glf.nn.heads import Heads, Prototypes, mlp
from glf.types import Embeddings, Views


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


PASSED = ("target", "indices", "boxes", "prior")  # what terms read of the views themselves


class Network(nn.Module):
    """Views in, Embeddings out. Views of one size go through the backbone as one batch."""

    def __init__(self, backbone: Backbone, heads: Heads, needs: frozenset[str], classes: int = 0) -> None:
        super().__init__()
        self.needs = needs
        widths = (backbone.width, *heads.projector)
        head = mlp(widths, norm=heads.norm, last_norm=heads.last_norm)
        self.student = nn.Sequential(backbone, head)
        self.predictor = mlp((widths[-1], *heads.predictor, widths[-1])) if "p" in needs else None
        self.teacher = Teacher(self.student) if "teacher" in needs else None
        self.generator = mlp((widths[-1], *heads.generator, widths[-1])) if "generated" in needs else None
        self.prototypes = Prototypes(heads.prototypes, widths[-1]) if "prototypes" in needs else None
        self.classifier = nn.Linear(widths[-1], classes) if "scores" in needs else None
        self.local = mlp((backbone.map_width(), *heads.local)) if "maps" in needs else None
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

    def forward(self, views: Views, taught: bool = True) -> Embeddings:
        """What the objective needs of these views; without the teacher's part for one who has that already."""
        count, batch = len(views.x), len(views.indices)
        h, maps = self._encoded(views.x)
        z = _per_view(self.student[1](h), count)
        p = teacher = None
        if self.predictor is not None:  # from z as the terms see it, so that gradients at z include the predictor's
            p = _per_view(self.predictor(z.flatten(0, 1)), count)
        generated = None
        if self.generator is not None:
            generated = _per_view(self.generator(z.detach().flatten(0, 1)), count)
        if self.teacher is not None and taught:
            full = full_views(views.x)
            teacher = _per_view(self.teacher(torch.cat(full)), len(full))
        if self.local is not None and maps is not None:
            maps = self.local(maps.flatten(0, 1)).reshape(count, batch, maps.shape[1], -1)
        passed = {name: getattr(views, name) for name in PASSED if name in self.needs}
        return Embeddings(
            z=z,
            h=_per_view(h, count) if "h" in self.needs else None,
            p=p,
            teacher=teacher,
            generated=generated,
            maps=maps,
            scores=None if self.classifier is None else self.classifier(z),
            prototypes=None if self.prototypes is None else self.prototypes(),
            **passed,
        )

    def _encoded(self, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """Features of all views, and where they are asked for the maps that they were pooled from."""
        if self.local is None:
            encode = self.compiled[0] if self.compiled else self.backbone
            return torch.cat([encode(same) for same in _by_size(x)]), None
        if len(full_views(x)) < len(x):
            raise ValueError("local features are compared between views of one size: not with small crops")
        return self.backbone.with_maps(torch.cat(x))


def full_views(x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The views of full size, which a recipe has first; a teacher sees no others."""
    return next(tuple(group) for _, group in groupby(x, key=lambda view: view.shape[-2:]))


def _by_size(x: tuple[Tensor, ...]) -> list[Tensor]:
    return [torch.cat(list(group)) for _, group in groupby(x, key=lambda view: view.shape[-2:])]


def _per_view(x: Tensor, count: int) -> Tensor:
    return x.reshape(count, -1, x.shape[-1])
