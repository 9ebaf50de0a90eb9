"""One encoder on one pair of splits: what every part of the suite looks at, and what it answers with."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from rich.console import Console
from torch import Tensor, nn

from glf.config import EvaluateConfig
from glf.data.store import Images
from glf.evaluate.subject import Subject
from glf.nn.features import extract

CONFIDENCE = 0.95


class Figure(NamedTuple):
    """A number, its protocol in words, and what belongs to it."""

    value: float
    words: str
    detail: Mapping[str, Any] = {}
    percent: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """An encoder, the images it is judged on, and its features of them: extracted once, whoever asks first."""

    name: str  # of its column
    encoder: nn.Module
    subject: Subject
    place: str  # as torch names it
    config: EvaluateConfig
    out: Path
    console: Console

    @property
    def classes(self) -> int:
        return len(self.subject.train.classes)

    @cached_property
    def train(self) -> Float[Tensor, "train dim"]:
        return self._features(self.subject.train)

    @cached_property
    def test(self) -> Float[Tensor, "test dim"]:
        return self._features(self.subject.test)

    @cached_property
    def train_labels(self) -> Int[Tensor, " train"]:
        return torch.from_numpy(self.subject.train.targets).to(self.place)

    @cached_property
    def test_labels(self) -> Int[Tensor, " test"]:
        return torch.from_numpy(self.subject.test.targets).to(self.place)

    def _features(self, images: Images) -> Tensor:
        rows = extract(
            self.encoder,
            images,
            cache=self.out / "features",
            size=self.subject.backbone.image_size,
            device=self.place,
            batch_size=self.config.batch_size,
        )
        return torch.from_numpy(rows).to(self.place)

    def accuracy(self, hits: Bool[Tensor, " test"], words: str) -> Figure:
        """The share of test images that are hit, with its interval and that of each class."""
        labels = self.test_labels.cpu()
        hits = hits.cpu()
        right = torch.bincount(labels, hits.double(), minlength=self.classes).tolist()
        count = torch.bincount(labels, minlength=self.classes).tolist()
        per_class = [round(r / n, 4) if n else None for r, n in zip(right, count, strict=True)]
        detail = {"interval": interval(hits), "per_class": per_class}
        return Figure(round(float(hits.double().mean()), 4), words, detail, percent=True)


def interval(hits: Bool[Tensor, " test"]) -> tuple[float, float]:
    """The bootstrap's interval of the accuracy over the test images, at 95 %.

    A resample of n hits and misses has a binomial number of hits. So what many resamples approach is written down
    instead of drawn: the quantiles of that distribution.

    >>> interval(torch.tensor([True] * 80 + [False] * 20))
    (0.72, 0.88)
    """
    from scipy.stats import binom

    tail = (1 - CONFIDENCE) / 2
    low, high = binom.ppf((tail, 1 - tail), len(hits), float(hits.double().mean())) / len(hits)
    return round(float(low), 4), round(float(high), 4)
