"""A run's backbone on the test split: one feature pass, the table of evaluators, the references beside it."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from glf import result
from glf.config import EvaluateConfig, PretrainConfig, to_dict
from glf.data import sources
from glf.data.loader import draw
from glf.data.store import Images, MissingSplit
from glf.evaluate.linear import linear_probe
from glf.heap import kept_memory
from glf.measure.geometry import effective_rank, spread
from glf.measure.neighbours import nearest_neighbours, weighted_neighbours
from glf.nn.backbone import Backbone
from glf.nn.features import extract
from glf.nn.weights import load_backbone
from glf.train.directory import saved_config
from glf.train.run import accelerator, build_backbone, split, torch_device


@dataclass(frozen=True, kw_only=True)
class Features:
    """What every evaluator looks at."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    logits: Tensor  # of the linear probe: (test image, class)

    def accuracy(self, predicted: Tensor) -> float:
        """Share of test images with their label among the predictions: one for each, or a row of them."""
        hit = predicted.reshape(len(predicted), -1) == self.test_labels.unsqueeze(1)
        return round(float(hit.any(1).double().mean()), 4)


# Each row: the key in result.json, the protocol in words, the function.
EVALUATORS: dict[str, tuple[Callable[[EvaluateConfig], str], Callable[[Features, EvaluateConfig], float]]] = {
    "knn5": (
        lambda c: "5-nn (Euclidean, majority)",
        lambda f, c: f.accuracy(nearest_neighbours(f.train, f.train_labels, f.test, 5)),
    ),
    "knn": (
        lambda c: f"kNN (cosine, k {c.knn_k}, temperature {c.knn_temperature:g})",
        lambda f, c: f.accuracy(
            weighted_neighbours(f.train, f.train_labels, f.test, c.knn_k, c.knn_temperature),
        ),
    ),
    "linear": (
        lambda c: f"linear probe (SGD, {c.probe_epochs} epochs)",
        lambda f, c: f.accuracy(f.logits.argmax(1)),
    ),
    "linear_top5": (
        lambda c: "the same, one of the best five",
        lambda f, c: f.accuracy(f.logits.topk(5).indices),
    ),
}
MANY_CLASSES = 20  # with fewer, to be among the best five says little


def evaluators(classes: int) -> dict[str, Any]:
    """Those that say something about so many classes."""
    return {key: row for key, row in EVALUATORS.items() if key != "linear_top5" or classes >= MANY_CLASSES}


GEOMETRY: dict[str, tuple[str, Callable[[Tensor], float]]] = {
    "rank": ("effective rank of the features", effective_rank),
    "spread": ("spread of unit features (1 uniform, 0 collapsed)", spread),
}
GEOMETRY_IMAGES = 5_000


def evaluate(config: EvaluateConfig, console: Console | None = None) -> dict[str, Any]:
    """Judge the backbone of a run; writes the evaluation into its result.json and returns it."""
    console = console or Console()
    found = judge(config, config.run / "features", console)
    result.update(config.run, evaluation=found)
    _print(console, found)
    return found


def judge(config: EvaluateConfig, cache: Path, console: Console) -> dict[str, Any]:
    """The evaluation alone, with features kept in ``cache``."""
    backbone = load_backbone(config.run)
    trained = saved_config(config.run)
    train, test, split_name = _splits(config, trained)
    if train.channels > backbone.channels:
        raise ValueError(f"{train.name} has {train.channels} channels, the backbone takes {backbone.channels}")
    labels = train.labelled and test.labelled
    labelled = labels and split_name != "train"
    if not labelled:
        why = "no images to judge on but those that were trained on" if labels else "no labels"
        console.print(f"{why}: only what can be said without them", highlight=False)
    device = accelerator(config.device)
    encoders = _encoders(backbone, train, trained, config.references)
    with kept_memory(device == "cpu"):
        rows = {
            name: _judge(encoder, train, test, backbone.image_size, labelled, torch_device(device), config, cache)
            for name, encoder in encoders.items()
        }
    protocols = {k: words(config) for k, (words, _) in evaluators(len(train.classes)).items()} if labelled else {}
    protocols |= {key: words for key, (words, _) in GEOMETRY.items()}
    return {
        "data": train.name,
        "split": split_name,
        "train": len(train),
        "test": len(test),
        "protocols": protocols,
        "rows": rows,
        "config": to_dict(config),
        **result.provenance(),
    }


def _splits(config: EvaluateConfig, trained: PretrainConfig) -> tuple[Images, Images, str]:
    """Training and test images. Where there is no test split, the run's held-out part stands in, and is named."""
    data = config.data or trained.data
    options: dict[str, Any] = {
        "size": trained.image_size,
        "root": config.root or trained.root,
        "download": config.download,
        "labels": trained.labels,
        "store": trained.store,
    }
    train = sources.load(data, "train", **options)
    test = None
    if config.split == "test":
        with suppress(MissingSplit):
            test = sources.load(data, "test", **options)
    rows = np.arange(len(train))
    name = "test"
    if test is None:
        rows, held_out = split(train, trained)
        if len(held_out) == 0 and config.split == "val":
            raise ValueError(f"{config.run} held no training images out: train with --val-images")
        name = "held-out part of train" if len(held_out) else "train"  # the features' shape can be judged on any
        test = train.select(held_out if len(held_out) else rows)
    if config.limit is not None:
        rows = rows[draw(train.targets[rows], min(config.limit, len(rows)), trained.seed)]  # as training draws them
    return (train.select(rows) if len(rows) < len(train) else train), test, name


def _encoders(backbone: Backbone, train: Images, trained: PretrainConfig, references: bool) -> dict[str, nn.Module]:
    if not references:
        return {"trained": backbone}
    untrained = build_backbone(train, backbone.image_size, replace(trained, weights=None))
    return {"pixels": nn.Flatten(), "untrained": untrained, "trained": backbone}


def _judge(
    encoder: nn.Module,
    train: Images,
    test: Images,
    size: int,
    labelled: bool,
    place: str,
    config: EvaluateConfig,
    cache: Path,
) -> dict[str, float]:
    pair = [
        torch.from_numpy(
            np.array(extract(encoder, images, cache=cache, size=size, device=place, batch_size=config.batch_size))
        )
        for images in (train, test)
    ]
    shape = {key: measure(pair[1][:GEOMETRY_IMAGES]) for key, (_, measure) in GEOMETRY.items()}
    if not labelled:
        return shape
    (seen, asked), classes = (features.to(place) for features in pair), len(train.classes)
    labels = torch.from_numpy(train.targets).to(place)
    features = Features(
        train=seen,
        train_labels=labels,
        test=asked,
        test_labels=torch.from_numpy(test.targets).to(place),
        logits=linear_probe(seen, labels, asked, classes=classes, epochs=config.probe_epochs, seed=config.seed),
    )
    return {**{key: function(features, config) for key, (_, function) in evaluators(classes).items()}, **shape}


def _print(console: Console, found: dict[str, Any]) -> None:
    title = f"{found['data']}: {found['test']:,} images of the {found['split']} split, {found['train']:,} to learn from"
    table = Table(title=title, title_justify="left")
    table.add_column("protocol")
    for name in found["rows"]:
        table.add_column(name, justify="right")
    for key, words in found["protocols"].items():
        values = [row.get(key) for row in found["rows"].values()]
        table.add_row(words, *(_shown(key, value) for value in values))
    console.print(table)


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if key in EVALUATORS else f"{value:.2f}"
