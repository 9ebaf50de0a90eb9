"""Accuracies with their intervals, the best five, and settings that are chosen on a part of train."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from glf.config.evaluation import EvaluateConfig
from glf.config.training import ResolvedPretrainConfig
from glf.data import sources
from glf.evaluation import probes
from glf.evaluation.context import EvalContext, EvalTarget, interval
from glf.evaluation.probes import linear_probe, logistic_probe
from glf.nn.backbone import Backbone


@pytest.fixture
def pixels(tmp_path: Path, console: Console) -> Any:
    """A case of real pixels: 2,000 images to learn from, 500 to judge on."""
    images = sources.load_images("fashion-mini")
    subject = EvalTarget(
        name="pixels",
        backbone=Backbone("small_resnet", channels=1, image_size=28),
        trained=ResolvedPretrainConfig(),
        train=images.select(np.arange(2000)),
        test=images.select(np.arange(2000, 2500)),
        split="test",
    )

    def make(**settings: Any) -> EvalContext:
        config = EvaluateConfig(run=Path(), **settings)
        return EvalContext(
            name="pixels",
            encoder=nn.Sequential(nn.AvgPool2d(2), nn.Flatten()),
            target=subject,
            place="cpu",
            config=config,
            out=tmp_path,
            console=console,
        )

    return make


def test_the_interval_is_the_bootstraps() -> None:
    random = np.random.default_rng(0)
    hits = random.random(700) < 0.83
    resampled = random.choice(hits, size=(20_000, 700)).mean(1)
    low, high = interval(torch.from_numpy(hits))
    assert (low, high) == pytest.approx(np.quantile(resampled, (0.025, 0.975)), abs=1.5 / 700)  # one hit, rounded
    assert interval(torch.ones(5, dtype=torch.bool)) == (1.0, 1.0)


def test_with_many_classes_the_best_five_count_too(pixels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = pixels(probe_epochs=20)
    assert set(probes.linear(case)) == {"linear"}
    monkeypatch.setattr(probes, "MANY_CLASSES", 10)
    found = probes.linear(case)
    logits = linear_probe(case.train, case.train_labels, case.test, classes=10, epochs=20)[0]
    among = [int(label) in row.topk(5).indices.tolist() for row, label in zip(logits, case.test_labels, strict=True)]
    assert found["linear_top5"].value == pytest.approx(np.mean(among), abs=1e-4)
    assert found["linear"].value < found["linear_top5"].value < 1


def test_hits_are_labels_among_the_predictions() -> None:
    predicted = torch.tensor([[0, 1], [0, 1], [0, 1]])
    assert probes.hits(predicted, torch.tensor([0, 1, 2])).tolist() == [True, True, False]
    assert probes.hits(predicted[:, 0], torch.tensor([0, 1, 0])).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("part", "probe", "name", "values"),
    [
        ("linear", linear_probe, "probe_lrs", (1e-5, 1e-2, 1.0)),
        # All far from each other: 1e3 is some points worse than 1e-2, which a tenth of the images may not see.
        ("logistic", logistic_probe, "strengths", (1e-6, 1e-2, 1e-5)),
    ],
)
def test_a_setting_is_chosen_without_the_test_images(
    pixels: Any, part: str, probe: Any, name: str, values: tuple[float, ...]
) -> None:
    case = pixels(**{name: values}, probe_epochs=20)
    found = getattr(probes, part)(case)[part]
    options = {"epochs": 20} if probe is linear_probe else {}
    argument = name.removeprefix("probe_")
    alone = [
        float((probe(case.train, case.train_labels, case.test, classes=10, **{argument: (v,)}, **options)[0].argmax(1)
               == case.test_labels).double().mean())
        for v in values
    ]  # fmt: skip
    assert found.value == pytest.approx(max(alone), abs=0.02)  # near the best on images that had no say
    assert found.value > alone[0] + 0.02, "the smallest learns next to nothing"
    assert "best of 3 on a tenth of train" in found.words
