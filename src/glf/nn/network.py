"""The trained network: backbone, heads and EMA teacher. Computes only the fields of ``Embeddings`` that are needed.

The *teacher* is the EMA teacher throughout glf: an exponential moving average of the student's weights, without
gradients (momentum encoder in MoCo, target network in BYOL).
"""

import copy
import math
from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor, nn

from glf.nn.backbone import Backbone
from glf.nn.cut import Tail
from glf.nn.heads import Heads, InstanceClassifier, Prototypes, mlp
from glf.nn.norms import frozen_batch_statistics
from glf.types import Embeddings, Views


class Teacher(nn.Module):
    """The EMA teacher: a copy of the student that follows it, with batch statistics of its own."""

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.copy = copy.deepcopy(student).requires_grad_(False)

    @torch.no_grad()
    def forward(self, *x: Tensor) -> Tensor:
        out: Tensor = self.copy(*x)
        return out

    @torch.no_grad()
    def follow(self, student: nn.Module, momentum: float) -> None:
        """Update the weights: teacher = momentum * teacher + (1 - momentum) * student."""
        for own, students in zip(self.copy.parameters(), student.parameters(), strict=True):
            own.lerp_(students.detach().to(own.dtype), 1 - momentum)


def momentum_at(progress: float, first: float, last: float) -> float:
    """EMA momentum at a fraction of training: half a cosine from ``first`` to ``last``.

    >>> [round(momentum_at(t, 0.99, 1.0), 3) for t in (0.0, 0.5, 1.0)]
    [0.99, 0.995, 1.0]
    """
    return last - (last - first) * (1 + math.cos(math.pi * progress)) / 2


PASSED = ("target", "indices", "boxes", "prior")  # fields of Views that are passed on to Embeddings


class Network(nn.Module):
    """Views to Embeddings. All views of one size are one batch to the backbone.

    ``classes`` and ``prior`` are the widths of the classifier and of the linear head on h, where a term needs them;
    ``rows`` are the positions of the training images in the data set, where a term classifies them.
    """

    def __init__(
        self,
        backbone: Backbone | Tail,
        heads: Heads,
        needs: frozenset[str],
        classes: int = 0,
        prior: int = 0,
        rows: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.needs = needs
        widths = (backbone.width, *heads.projector)
        head = mlp(widths, norm=heads.norm, last_norm=heads.last_norm)
        self.student = nn.Sequential(backbone, head)
        self.predictor = mlp((widths[-1], *heads.predictor, widths[-1])) if "p" in needs else None
        self.teacher = Teacher(self.student) if "teacher" in needs else None
        self.generator = mlp((widths[-1], *heads.generator, widths[-1])) if "generated" in needs else None
        self.prototypes = Prototypes(heads.prototypes, widths[-1]) if "prototypes" in needs else None
        self.teacher_prototypes = None
        if "teacher_prototypes" in needs:
            assert self.prototypes is not None, "what has a teacher's prototypes has prototypes"
            self.teacher_prototypes = Teacher(self.prototypes)
        self.classifier = nn.Linear(widths[-1], classes) if "scores" in needs else None
        self.instances = None
        if "instance_scores" in needs:
            assert rows is not None, "the caller knows the training images"
            self.instances = InstanceClassifier(widths[-1], rows)
        self.local = mlp((self.backbone.map_width(), *heads.local)) if "maps" in needs else None
        self.relation = nn.Linear(widths[0], prior) if "r" in needs else None
        # A faster form of the encoder, with the same weights, for training; in a list, so that it is not saved too.
        self.faster: list[Callable[[Tensor], Tensor]] = []

    @property
    def encoder(self) -> nn.Module:
        """The first part of the student: the backbone, or its tail if the trunk's activations are given."""
        return self.student[0]

    @property
    def backbone(self) -> Backbone:
        """The student's backbone, which training returns."""
        assert isinstance(self.encoder, Backbone)
        return self.encoder

    def compile_backbone(self) -> None:
        """Compile the backbone for training; online probes, with other batch sizes, use the uncompiled one."""
        self.faster = [torch.compile(self.backbone)]

    def forward(self, views: Views, with_teacher: bool = True) -> Embeddings:
        """Return the fields that the objective needs; without those without gradient if the caller has them already."""
        count, batch = len(views.x), len(views.indices)
        h, maps = self._encoded(views.x)
        z = _per_view(self.student[1](h), count)
        p = teacher = None
        if self.predictor is not None:  # of the same z that the terms read, so that gradients at z include p's
            p = _per_view(self.predictor(z.flatten(0, 1)), count)
        generated = None
        if self.generator is not None:
            generated = _per_view(self.generator(z.detach().flatten(0, 1)), count)
        if self.teacher is not None and with_teacher:
            full = full_views(views.x)
            teacher = _per_view(self.teacher(torch.cat(full)), len(full))
        if self.local is not None and maps is not None:
            maps = self.local(maps.flatten(0, 1)).reshape(count, batch, maps.shape[1], -1)
        clean = self._clean(views) if "clean" in self.needs and with_teacher else None
        passed = {name: getattr(views, name) for name in PASSED if name in self.needs}
        return Embeddings(
            z=z,
            h=_per_view(h, count) if "h" in self.needs else None,
            r=None if self.relation is None else _per_view(self.relation(h), count),
            p=p,
            teacher=teacher,
            clean=clean,
            generated=generated,
            maps=maps,
            scores=None if self.classifier is None else self.classifier(z),
            prototypes=None if self.prototypes is None else self.prototypes(),
            teacher_prototypes=None if self.teacher_prototypes is None else self.teacher_prototypes(),
            instance_scores=None if self.instances is None else self.instances(z),
            instance=None if self.instances is None else self.instances.instances(views.indices),
            full=len(full_views(views.x)),
            **passed,
        )

    def update_teacher(self, momentum: float) -> None:
        """Move the EMA teacher, and its prototypes if it has its own, towards the student."""
        if self.teacher is not None:
            self.teacher.follow(self.student, momentum)
        if self.teacher_prototypes is not None and self.prototypes is not None:
            self.teacher_prototypes.follow(self.prototypes, momentum)

    @torch.no_grad()
    def _clean(self, views: Views) -> Tensor:
        """z of the unaugmented images, the teacher's if there is one.

        Batch normalisation uses the statistics of these images, as it uses those of the views, but does not remember
        them: the running statistics stay those of the views.
        """
        assert views.clean is not None, "the training step adds it"
        encoder = self.student if self.teacher is None else self.teacher.copy
        with frozen_batch_statistics(encoder):
            out: Tensor = encoder(views.clean)
        return out

    def _encoded(self, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """Features of all views, and the feature maps they were pooled from if a local projector needs them."""
        if self.local is None:
            encode = self.faster[0] if self.faster else self.encoder
            return torch.cat([encode(same) for same in _by_size(x)]), None
        if len(full_views(x)) < len(x):
            raise ValueError("local features are compared between views of one size: use a policy without local crops")
        return self.backbone.with_maps(torch.cat(x))


def full_views(x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The full-size views, which come first in a policy; the teacher sees no others."""
    return next(tuple(group) for _, group in groupby(x, key=lambda view: view.shape[-2:]))


def _by_size(x: tuple[Tensor, ...]) -> list[Tensor]:
    return [torch.cat(list(group)) for _, group in groupby(x, key=lambda view: view.shape[-2:])]


def _per_view(x: Tensor, count: int) -> Tensor:
    return x.reshape(count, -1, x.shape[-1])
