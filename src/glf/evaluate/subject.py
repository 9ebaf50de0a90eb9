"""What is judged, and on which images: a run, a backbone in a file, or a model by name."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from glf.config import EvaluateConfig, Settled
from glf.data import sources
from glf.data.loader import draw
from glf.data.store import Images, MissingSplit
from glf.nn.backbone import Backbone
from glf.nn.pretrained import pretrained
from glf.nn.weights import load_backbone
from glf.train.directory import saved_config
from glf.train.feed import split
from glf.train.run import build_backbone

_LIBRARIES = ("timm:", "torchvision:")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A backbone, the images it is judged on, and how it was trained as far as that is known."""

    name: str
    backbone: Backbone
    trained: Settled
    train: Images
    test: Images
    split: str  # in words

    @property
    def labelled(self) -> bool:
        """Whether there are labels to judge with, on images that were not learnt from."""
        return self.train.labelled and self.test.labelled and self.split != "train"

    def untrained(self) -> Backbone:
        """The same network as it is before any training."""
        return build_backbone(self.train, self.backbone.image_size, replace(self.trained, weights=None))


def by_name(spec: str) -> bool:
    """Whether this is a model of a library rather than something on the disk."""
    return spec.startswith(_LIBRARIES)


def subject(spec: str, config: EvaluateConfig) -> Subject:
    """The subject that ``spec`` names, with the images that the configuration asks for."""
    backbone, trained = _found(spec, config)
    train, test, words = _splits(spec, config, trained)
    if train.channels > backbone.channels:
        raise ValueError(f"{train.name} has {train.channels} channels, the backbone takes {backbone.channels}")
    return Subject(name=spec, backbone=backbone, trained=trained, train=train, test=test, split=words)


def _found(spec: str, config: EvaluateConfig) -> tuple[Backbone, Settled]:
    path = Path(spec)
    if by_name(spec):
        backbone = pretrained(spec, weights=config.weights, size=config.image_size, download=config.download)
    else:
        if config.weights is not None or config.image_size is not None:
            raise ValueError(f"--weights and --image-size are for a model by name, and {spec} has its own")
        backbone = load_backbone(path)
        if path.is_dir():
            return backbone, saved_config(path)
    if config.data is None:
        raise ValueError(f"say on which images to judge {spec}: --data")
    trained = Settled(
        data=config.data, backbone=backbone.name, image_size=backbone.image_size, stem=backbone.stem, seed=config.seed
    )
    return backbone, trained


def _splits(spec: str, config: EvaluateConfig, trained: Settled) -> tuple[Images, Images, str]:
    """Training and test images. Where there is no test split, the run's held-out part stands in, and is named."""
    data = config.data or trained.data

    def load(which: Literal["train", "test"]) -> Images:
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
        rows, held_out = split(train, trained)
        if len(held_out) == 0 and config.split == "val":
            raise ValueError(f"{spec} held no training images out: train with --val-images")
        name = "held-out part of train" if len(held_out) else "train"  # the features' shape can be judged on any
        test = train.select(held_out if len(held_out) else rows)
    if config.limit is not None:
        rows = rows[draw(train.targets[rows], min(config.limit, len(rows)), trained.seed)]  # as training draws them
    return (train.select(rows) if len(rows) < len(train) else train), test, name
