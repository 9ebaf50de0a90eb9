"""Few labels: both classifiers against loops, the draws, and their interval."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from evaluation.test_probes import minimised
from glf.config.evaluation import SHOT_DRAWS, SHOTS
from glf.evaluation import fewshot
from glf.evaluation.context import EvalContext
from glf.evaluation.fewshot import draw_shots


def nearest(x: Tensor, y: Tensor, queries: Tensor) -> Tensor:
    """The label of the image with the largest cosine, in a loop."""
    found = [max(range(len(x)), key=lambda i, q=query: float(F.cosine_similarity(x[i], q, dim=0))) for query in queries]
    return y[torch.tensor(found)]


def test_accuracies_equal_loops_over_the_draws(pixels: Callable[..., EvalContext]) -> None:
    context = pixels(seed=3)
    found = fewshot.fewshot(context)
    assert list(found) == [f"{name}{shots}" for name in ("nearest", "logistic") for shots in SHOTS]
    labels, truth = context.train_labels.numpy(), context.test_labels
    train, test = context.train.double(), context.test.double()
    mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
    accuracies: dict[str, list[float]] = {"nearest1": [], "logistic10": []}
    for draw in range(SHOT_DRAWS):
        one, ten = (draw_shots(labels, shots, 3 + draw) for shots in (1, 10))
        assert np.bincount(labels[ten]).tolist() == [10] * 10
        weight, bias = minimised((train[ten] - mean) / std, context.train_labels[ten], 10, fewshot.STRENGTH)
        guessed = {
            "nearest1": nearest(train[one], context.train_labels[one], test),
            "logistic10": ((test - mean) / std @ weight + bias).argmax(1),
        }
        for name, classes in guessed.items():
            accuracies[name].append(float((classes == truth).double().mean()))
    for name, values in accuracies.items():
        metric = found[name]
        assert metric.value == pytest.approx(np.mean(values), abs=2e-3)  # near ties depend on rounding
        assert metric.details["spread"] == pytest.approx(np.std(values, ddof=1), abs=2e-3)
        half = 2.262157 * np.std(values, ddof=1) / SHOT_DRAWS**0.5  # Student's t, nine degrees of freedom
        assert metric.details["interval"] == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=4e-3)
    assert found["nearest1"].protocol == f"1 label per class (nearest neighbour, cosine, {SHOT_DRAWS} draws)"
    assert found["logistic10"].protocol == f"10 labels per class (logistic regression, {SHOT_DRAWS} draws)"
    for name in ("nearest", "logistic"):
        values = [found[f"{name}{shots}"].value for shots in SHOTS]
        assert values == sorted(values), "more labels, better"
        assert values[0] > 0.2


def test_with_very_many_labels_only_the_nearest_neighbour_is_measured(
    pixels: Callable[..., EvalContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fewshot, "MOST_LABELS", 100)
    assert list(fewshot.fewshot(pixels())) == ["nearest1", "nearest10", "nearest100", "logistic1", "logistic10"]


def test_more_labels_than_any_class_has_are_not_drawn(pixels: Callable[..., EvalContext]) -> None:
    context = pixels()
    few = np.concatenate([np.flatnonzero(context.target.train.targets == label)[:20] for label in range(10)])
    object.__setattr__(context.target, "train", context.target.train.select(few))
    assert set(fewshot.fewshot(context)) == {"nearest1", "nearest10", "logistic1", "logistic10"}


def test_draws_differ_and_can_be_repeated() -> None:
    labels = np.repeat([0, 1, 2], [50, 50, 2])
    one, again, other = (draw_shots(labels, 5, seed) for seed in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert np.bincount(labels[one]).tolist() == [5, 5, 2], "as many as there are"
    assert len(set(one)) == len(one)
