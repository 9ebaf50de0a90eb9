"""The training step of an adaptation: the encoder is in evaluation mode and learns later and slower than the heads."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glf.adaptation.activations import batch_views
from glf.config.training import ResolvedAdaptConfig
from glf.data.images import ImageSet
from glf.measure.knn import neighbours_kept
from glf.nn.backbone import Backbone
from glf.nn.schedule import warmup_cosine
from glf.train.module import Pretraining, batch_of
from glf.train.optim import Part
from glf.types import Batch, Embeddings, Loss, Views

FEATURE_BATCH = 256


class Adaptation(Pretraining):
    """Adapts a pretrained backbone, or its tail on the cached activations of its trunk.

    The encoder is in evaluation mode throughout: batch normalisation uses the pretrained running statistics, which a
    batch of a few hundred images would estimate worse, and dropout is off. Its scales and shifts are trained.
    """

    def __init__(self, *, whole: Backbone, activations: np.ndarray | None, **parts: Any) -> None:
        super().__init__(**parts)
        self.whole = [whole]  # in a list: its weights are those of the network and are not saved twice
        self.activations = activations
        self.start = self.adapted()  # the pretrained weights
        self.reference: tuple[np.ndarray, Tensor] | None = None  # some images, and their frozen features

    @property
    def adaptation(self) -> ResolvedAdaptConfig:
        assert isinstance(self.config, ResolvedAdaptConfig)
        return self.config

    @property
    def backbone(self) -> Backbone:
        return self.whole[0]

    def train(self, mode: bool = True) -> "Adaptation":
        super().train(mode)
        for student in (self.network.student, *([self.network.teacher.copy] if self.network.teacher else [])):
            assert isinstance(student, nn.Sequential)
            student[0].eval()
        return self

    def _views(self, batch: Batch) -> Views:
        if self.activations is None:
            return super()._views(batch)
        x = tuple(v.to(self.dtype, memory_format=_format(v)) for v in batch.images.unbind(1))
        clean, x = (x[0], x[1:]) if "clean" in self.network.needs else (None, x)
        prior = None if batch.prior is None else batch.prior.to(self.dtype)
        boxes = batch.images.new_zeros(len(x), len(batch.images), 4)
        return Views(x, boxes, batch.target, batch.indices, prior, clean)

    def _held_out_batch(self, images: ImageSet, indices: np.ndarray, prior: np.ndarray | None) -> Batch:
        if self.activations is None:
            return super()._held_out_batch(images, indices, prior)
        first = 0 if "clean" in self.network.needs else 1  # column 0 has the images as they are
        columns = np.arange(first, 1 + len(self.policy))
        activations = torch.from_numpy(self.activations[indices[:, None], columns])
        return batch_of(activations, images, indices, prior, self.device)

    def _loss(self, embeddings: Embeddings) -> Loss:
        loss = super()._loss(embeddings)
        weight = self.adaptation.l2sp
        if weight:
            now = self._trained()
            term = (
                weight
                / 2
                * torch.stack([(now[name] - p.to(now[name])).pow(2).sum() for name, p in self.start.items()]).sum()
            )
            loss = replace(loss, total=loss.total + term, constrain={**loss.constrain, "l2sp": term})
            if self.metrics:
                self.metrics |= {"loss": loss.total.detach(), "constrain/l2sp": term.detach()}
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        super().on_before_optimizer_step(optimizer)
        weight = self.adaptation.l2sp
        if weight and not self.automatic_optimization:  # chunks take gradients at embeddings, which L2-SP does not read
            for name, p in self._trained().items():
                if p.grad is not None:
                    p.grad.add_(p.detach() - self.start[name].to(p), alpha=weight)

    def special_rates(self) -> list[Part]:
        """Heads: a higher learning rate from the start. Everything else, the encoder, begins after ``head_share``."""
        config, encoder = self.adaptation, {id(p) for p in self.network.encoder.parameters()}
        total = config.epochs * self.steps_per_epoch
        alone = round(config.head_share * total)
        warmup = max(1, alone // 2)
        later = warmup_cosine(warmup, max(1, total - alone))
        parameters = [*self.network.parameters(), *self.objective.parameters()]
        factor = config.head_lr / config.lr if config.lr else 0.0
        fixed = [part._replace(factor=factor) for part in super().special_rates()]  # a predictor that does not decay
        others = encoder | {id(p) for part in fixed for p in part.parameters}
        heads = [p for p in parameters if id(p) not in others]
        tail = [p for p in parameters if id(p) in encoder]
        return [
            Part(tail, 1.0, lambda step: 0.0 if step < alone else later(step - alone)),
            Part(heads, factor, warmup_cosine(warmup, total)),
            *fixed,
        ]

    @torch.no_grad()
    def features(self, images: ImageSet, indices: np.ndarray) -> Tensor:
        if self.activations is None:
            return super().features(images, indices)
        return self._tail_features(indices, 0)

    @property
    def view_pairs(self) -> int:
        """Number of disjoint pairs of views of an image that ``view_features`` knows."""
        return 1 if self.activations is None else (self.activations.shape[1] - 1) // 2

    @torch.no_grad()
    def view_features(self, images: ImageSet, indices: np.ndarray, number: int) -> Tensor:
        """Features of an augmented view of some images, by its number from 0 on: the same at every call."""
        if self.activations is not None:
            return self._tail_features(indices, 1 + number)
        return self.live_view_features(self.backbone, images, indices, number)

    @torch.no_grad()
    def live_view_features(self, backbone: Backbone, images: ImageSet, indices: np.ndarray, number: int) -> Tensor:
        """The same of any backbone, from views that are drawn now."""
        found = [torch.zeros(0, backbone.width)]
        backbone.to(self.device).eval()
        for start in range(0, len(indices), FEATURE_BATCH):
            rows = indices[start : start + FEATURE_BATCH]
            given = self.policy, self.image_size, 1, self.config.colours
            views = batch_views(images.pixels[rows], *given, seed=(self.config.seed, start), device=self.device)
            found.append(backbone(views[1 + number]).float().cpu())
        return torch.cat(found)

    def _tail_features(self, indices: np.ndarray, column: int) -> Tensor:
        """Features from cached activations: column 0 has the images as they are, the others their views."""
        assert self.activations is not None
        tail, found = self.network.encoder, [torch.zeros(0, self.backbone.width)]
        device = next(tail.parameters()).device
        for start in range(0, len(indices), FEATURE_BATCH):
            x = torch.from_numpy(self.activations[indices[start : start + FEATURE_BATCH], column])
            found.append(tail(x.to(device).to(self.dtype, memory_format=_format(x))).float().cpu())
        return torch.cat(found)

    def compare_with_start(self, indices: np.ndarray, features: Tensor) -> dict[str, float]:
        if self.reference is None or not np.array_equal(indices, self.reference[0]):
            return {}
        return {"val/kept": round(float(neighbours_kept(self.reference[1], features).mean()), 4)}

    def _trained(self) -> dict[str, Tensor]:
        """The encoder's parameters that training changes."""
        return {name: p for name, p in self.network.encoder.named_parameters() if p.requires_grad}

    def adapted(self) -> dict[str, Tensor]:
        """A copy of the trained parameters as they are now."""
        return {name: p.detach().clone() for name, p in self._trained().items()}

    @torch.no_grad()
    def set_weights(self, adapted: dict[str, Tensor], share: float) -> None:
        """Set the encoder to the average of the pretrained (share 0) and the adapted weights (share 1)."""
        for name, p in self._trained().items():
            start, end = self.start[name].to(p), adapted[name].to(p)
            p.copy_(start if share == 0 else end if share == 1 else torch.lerp(start, end, share))


def _format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.ndim == 4 else torch.contiguous_format
