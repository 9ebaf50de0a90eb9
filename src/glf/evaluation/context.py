"""What is judged, and on which images: a run, a backbone in a file, or a model by name."""
# MERGED DOCS:
# | """One encoder on one pair of splits: what every part of the suite looks at, and what it answers with."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from rich.console import Console
from torch import Tensor, nn

from glf.config.evaluation import EvaluateConfig
from glf.config.training import ResolvedPretrainConfig
from glf.data import sources
from glf.data.images import ImageSet, MissingSplit, split_held_out, stratified_sample
from glf.nn.backbone import Backbone
from glf.nn.features import extract
from glf.nn.pretrained import pretrained
from glf.nn.weights import build_backbone, load_backbone
from glf.rundir import saved_config

_LIBRARIES = ("timm:", "torchvision:")


@dataclass(frozen=True, kw_only=True)
class EvalTarget:
    """A backbone, the images it is judged on, and how it was trained as far as that is known."""

    name: str
    backbone: Backbone
    trained: ResolvedPretrainConfig
    train: ImageSet
    test: ImageSet
    split: str  # in words

    @property
    def labelled(self) -> bool:
        """Whether there are labels to judge with, on images that were not learnt from."""
        return self.train.labelled and self.test.labelled and self.split != "train"

    def untrained(self) -> Backbone:
        """The same network as it is before any training."""
        return build_backbone(self.train, self.backbone.image_size, replace(self.trained, weights=None))


def is_library_model(spec: str) -> bool:
    """Whether this is a model of a library rather than something on the disk."""
    return spec.startswith(_LIBRARIES)


def load_target(spec: str, config: EvaluateConfig) -> EvalTarget:
    """The subject that ``spec`` names, with the images that the configuration asks for."""
    backbone, trained = _found(spec, config)
    train, test, words = _splits(spec, config, trained)
    if train.channels > backbone.channels:
        raise ValueError(f"{train.name} has {train.channels} channels, the backbone takes {backbone.channels}")
    return EvalTarget(name=spec, backbone=backbone, trained=trained, train=train, test=test, split=words)


def _found(spec: str, config: EvaluateConfig) -> tuple[Backbone, ResolvedPretrainConfig]:
    path = Path(spec)
    if is_library_model(spec):
        backbone = pretrained(spec, weights=config.weights, size=config.image_size, download=config.download)
    else:
        if config.weights is not None or config.image_size is not None:
            raise ValueError(f"--weights and --image-size are for a model by name, and {spec} has its own")
        backbone = load_backbone(path)
        if path.is_dir():
            return backbone, saved_config(path)
    if config.data is None:
        raise ValueError(f"say on which images to judge {spec}: --data")
    trained = ResolvedPretrainConfig(
        data=config.data, backbone=backbone.name, image_size=backbone.image_size, stem=backbone.stem, seed=config.seed
    )
    return backbone, trained


def _splits(spec: str, config: EvaluateConfig, trained: ResolvedPretrainConfig) -> tuple[ImageSet, ImageSet, str]:
    """Training and test images. Where there is no test split, the run's held-out part stands in, and is named."""
    data = config.data or trained.data

    def load(which: Literal["train", "test"]) -> ImageSet:
        return sources.load(
            data,
            which,
            size=trained.image_size,
            root=config.root or trained.root,
            download=config.download,
            labels=trained.labels,
            store=trained.store,
        )

    train, test = load("train"), None
    if config.split == "test":
        with suppress(MissingSplit):
            test = load("test")
    rows = np.arange(len(train))
    name = "test"
    if test is None:
        rows, held_out = split_held_out(train, trained)
        if len(held_out) == 0 and config.split == "val":
            raise ValueError(f"{spec} held no training images out: train with --val-images")
        name = "held-out part of train" if len(held_out) else "train"  # the features' shape can be judged on any
        test = train.select(held_out if len(held_out) else rows)
    if config.max_images is not None:
        rows = rows[
            stratified_sample(train.targets[rows], min(config.max_images, len(rows)), trained.seed)
        ]  # as training draws them
    return (train.select(rows) if len(rows) < len(train) else train), test, name


CONFIDENCE = 0.95


class Metric(NamedTuple):
    """A number, its protocol in words, and what belongs to it."""

    value: float
    words: str
    detail: Mapping[str, Any] = {}
    percent: bool = False


@dataclass(frozen=True, kw_only=True)
class EvalContext:
    """An encoder, the images it is judged on, and its features of them: extracted once, whoever asks first."""

    name: str  # of its column
    encoder: nn.Module
    target: EvalTarget
    place: str  # as torch names it
    config: EvaluateConfig
    out: Path
    console: Console

    @property
    def classes(self) -> int:
        return len(self.target.train.classes)

    @cached_property
    def train(self) -> Float[Tensor, "train dim"]:
        return self._features(self.target.train)

    @cached_property
    def test(self) -> Float[Tensor, "test dim"]:
        return self._features(self.target.test)

    @cached_property
    def train_labels(self) -> Int[Tensor, " train"]:
        return torch.from_numpy(self.target.train.targets).to(self.place)

    @cached_property
    def test_labels(self) -> Int[Tensor, " test"]:
        return torch.from_numpy(self.target.test.targets).to(self.place)

    def _features(self, images: ImageSet) -> Tensor:
        rows = extract(
            self.encoder,
            images,
            cache=self.out / "features",
            size=self.target.backbone.image_size,
            device=self.place,
            batch_size=self.config.batch_size,
        )
        return torch.from_numpy(rows).to(self.place)

    def accuracy(self, hits: Bool[Tensor, " test"], words: str) -> Metric:
        """The share of test images that are hit, with its interval and that of each class."""
        labels = self.test_labels.cpu()
        hits = hits.cpu()
        right = torch.bincount(labels, hits.double(), minlength=self.classes).tolist()
        count = torch.bincount(labels, minlength=self.classes).tolist()
        per_class = [round(r / n, 4) if n else None for r, n in zip(right, count, strict=True)]
        detail = {"interval": interval(hits), "per_class": per_class}
        return Metric(round(float(hits.double().mean()), 4), words, detail, percent=True)


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
