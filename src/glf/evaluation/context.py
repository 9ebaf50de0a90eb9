"""The input and output types of every evaluation.

`EvalTarget` is a backbone with the training and test images it is evaluated on. `EvalContext` is one encoder on these
images: the backbone itself, or a reference such as raw pixels. It extracts the features once and keeps them. `Metric`
is a number with the protocol that produced it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from rich.console import Console
from torch import Tensor, nn

from glf import plugins
from glf.config.evaluation import EvaluateConfig
from glf.config.training import ResolvedAdaptConfig, ResolvedPretrainConfig
from glf.data import sources
from glf.data.images import ImageSet, split_held_out, stratified_sample
from glf.data.source import MissingSplit
from glf.measure.blocks import TooFewError
from glf.nn.backbone import Backbone
from glf.nn.features import extract
from glf.nn.pretrained import is_library_model, load_encoder, pretrained
from glf.nn.weights import build_backbone, load_backbone
from glf.rundir import read_config
from glf.runfiles import FEATURES
from glf.ui import progress, say

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class EvalTarget:
    """A backbone and the images it is evaluated on."""

    name: str
    backbone: Backbone
    pretraining: ResolvedPretrainConfig  # of a model that glf did not train: defaults, with the model's image size
    train: ImageSet
    test: ImageSet
    split: str  # the images in `test`: "test", "held-out part of train" or "train"

    @property
    def labelled(self) -> bool:
        """Whether accuracies can be measured: both sets have labels, and the test images are not training images."""
        return self.train.labelled and self.test.labelled and self.split != "train"

    @property
    def method(self) -> str | None:
        """The method of a run; None for any other model."""
        return self.pretraining.method if Path(self.name).is_dir() else None

    def before_training(self, download: bool = False) -> tuple[str, Backbone]:
        """The same network before training: "frozen", the pretrained encoder of an adaptation, or "untrained"."""
        config = self.pretraining
        if isinstance(config, ResolvedAdaptConfig):
            size = self.backbone.image_size
            return "frozen", load_encoder(config.encoder, weights=config.weights, size=size, download=download)
        return "untrained", build_backbone(self.train, self.backbone.image_size, replace(config, weights=None))


def load_target(spec: str, config: EvaluateConfig) -> EvalTarget:
    """Load a run, a saved backbone or a library model, with the images that the configuration names."""
    backbone, pretraining = _load_backbone(spec, config)
    train, test, split = _load_splits(spec, config, pretraining)
    for part, images in (("training", train), ("test", test)):
        if images.channels > backbone.channels:
            raise ValueError(
                f"the {part} images of {images.name} have {images.channels} channels, and {spec} takes"
                f" {backbone.channels}: evaluate it on grey images"
            )
    if train.channels != test.channels:
        raise ValueError(
            f"{train.name} has {train.channels} channels in its training images and {test.channels} in its test images:"
            " give both the same"
        )
    return EvalTarget(name=spec, backbone=backbone, pretraining=pretraining, train=train, test=test, split=split)


def _load_backbone(spec: str, config: EvaluateConfig) -> tuple[Backbone, ResolvedPretrainConfig]:
    if is_library_model(spec):
        backbone = pretrained(spec, weights=config.weights, size=config.image_size, download=config.download)
    else:
        if config.weights is not None or config.image_size is not None:
            raise ValueError(
                f"--weights and --image-size only apply to timm: and torchvision: models; {spec} already defines both"
            )
        backbone = load_backbone(Path(spec))
        if Path(spec).is_dir():
            config_of_run = read_config(Path(spec))
            plugins.load(config_of_run.plugin)  # a plug-in that is missing is found now, not after minutes
            return backbone, config_of_run
    if config.data is None:
        raise ValueError(f"{spec} has no data of its own: name the images to evaluate on with --data")
    return backbone, ResolvedPretrainConfig(
        data=config.data, backbone=backbone.name, image_size=backbone.image_size, stem=backbone.stem, seed=config.seed
    )


def _load_splits(
    spec: str, config: EvaluateConfig, pretraining: ResolvedPretrainConfig
) -> tuple[ImageSet, ImageSet, str]:
    """Load training images, test images, and the name of the latter.

    Without a test split, the test images are those that the run held out of training, or else all training images.
    """

    def load(which: Literal["train", "test"]) -> ImageSet:
        return sources.load_images(
            config.data or pretraining.data,
            which,
            size=pretraining.image_size,
            root=config.root or pretraining.root,
            download=config.download,
            labels=pretraining.labels,
            store=pretraining.store,
        )

    train, test, split = load("train"), None, "test"
    indices = np.arange(len(train))
    if config.split == "test":
        with suppress(MissingSplit):
            test = load("test")
    if test is None:
        indices, held_out = split_held_out(train, pretraining)
        if len(held_out) == 0 and config.split == "val":
            raise ValueError(f"{spec} has no held-out training images for --split val: train with --val-images above 0")
        split = "held-out part of train" if len(held_out) else "train"  # geometry can be measured on any images
        test = train.select(held_out if len(held_out) else indices)
    if config.max_images is not None:  # the same sample as in training, hence its seed
        count = min(config.max_images, len(indices))
        indices = indices[stratified_sample(train.targets[indices], count, pretraining.seed)]
    return (train.select(indices) if len(indices) < len(train) else train), test, split


class Metric(NamedTuple):
    """A number, the protocol that produced it, and further details for result.json."""

    value: float
    protocol: str
    details: Mapping[str, Any] = {}
    percent: bool = False  # a fraction, shown in percent


@dataclass(frozen=True, kw_only=True)
class EvalContext:
    """One encoder on the images of a target; features are extracted at first use."""

    name: str  # of its column in the table
    encoder: nn.Module
    target: EvalTarget
    device: str
    config: EvaluateConfig
    out: Path
    console: Console
    missing: dict[str, str] = field(default_factory=dict)  # protocols that these images do not allow, and why

    @contextmanager
    def or_missing(self, protocol: str) -> Iterator[None]:
        """Note a measure for which the images are too few, with the reason, instead of ending the evaluation."""
        try:
            yield
        except TooFewError as error:
            if str(error) not in self.missing.values():
                say(self.console, f"{self.name}: {protocol} n/a: {error}")
            self.missing[protocol] = str(error)

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
        return torch.from_numpy(self.target.train.targets).to(self.device)

    @cached_property
    def test_labels(self) -> Int[Tensor, " test"]:
        return torch.from_numpy(self.target.test.targets).to(self.device)

    @contextmanager
    def progress(self, total: int, what: str) -> Iterator[Callable[[], None]]:
        """Show a progress bar, and provide the function that advances it."""
        with progress(console=self.console) as bar:
            yield partial(bar.advance, bar.add_task(f"{self.name}: {what}", total=total))

    def _features(self, images: ImageSet) -> Float[Tensor, "image dim"]:
        features = extract(
            self.encoder,
            images,
            cache=self.out / FEATURES,
            size=self.target.backbone.image_size,
            device=self.device,
            batch_size=self.config.batch_size,
        )
        return torch.from_numpy(features).to(self.device)

    def accuracy(self, hits: Bool[Tensor, " test"], protocol: str) -> Metric:
        """Accuracy from the correctly classified test images, with its interval and the accuracy within each class."""
        hits, labels = hits.cpu(), self.test_labels.cpu()
        correct = torch.bincount(labels, hits.double(), minlength=self.classes).tolist()
        count = torch.bincount(labels, minlength=self.classes).tolist()
        per_class = [round(c / n, 4) if n else None for c, n in zip(correct, count, strict=True)]
        details = {"interval": bootstrap_interval(hits), "per_class": per_class}
        return Metric(round(float(hits.double().mean()), 4), protocol, details, percent=True)


def bootstrap_interval(hits: Bool[Tensor, " test"]) -> tuple[float, float]:
    """95 % bootstrap interval of the accuracy over the test images.

    The number of hits in a bootstrap sample is binomial, so the quantiles are exact and nothing is resampled.

    >>> bootstrap_interval(torch.tensor([True] * 80 + [False] * 20))
    (0.72, 0.88)
    """
    from scipy.stats import binom

    tail = (1 - CONFIDENCE) / 2
    low, high = binom.ppf((tail, 1 - tail), len(hits), float(hits.double().mean())) / len(hits)
    return round(float(low), 4), round(float(high), 4)
