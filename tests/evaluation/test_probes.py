"""Probes: the linear probe against a loop over torch's SGD, the logistic probe against its objective in float64."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import linear_model
from torch import Tensor, nn
from torch.nn import functional as F

from glf.data.sources import load_images
from glf.evaluation import probes
from glf.evaluation.classifiers import FeatureScaler, LogisticRegression, linear_probe
from glf.evaluation.context import EvalContext


def features(count: int) -> tuple[Tensor, Tensor]:
    images = load_images("fashion-mini")
    x = torch.from_numpy(images.pixels[:count].reshape(count, -1)[:, ::7] / 255.0)
    return x, torch.from_numpy(images.targets[:count])


def standardised(train: Tensor, *others: Tensor) -> list[Tensor]:
    mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
    return [(x - mean) / std for x in (train, *others)]


def sgd_loop(x: Tensor, y: Tensor, queries: Tensor, epochs: int, batch: int, lr: float) -> Tensor:
    x, queries = standardised(x, queries)
    model = nn.Linear(x.shape[1], 10).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-6)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1e-4) ** (epoch / (epochs - 1))
        order = torch.randperm(len(x), generator=generator)
        for indices in order.split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[indices]), y[indices]).backward()
            optimizer.step()
    return model(queries).detach()


def test_the_linear_probe_equals_a_loop_over_sgd_at_every_learning_rate() -> None:
    x, y = features(650)
    found = linear_probe(x[:500], y[:500], x[500:], (1e-2, 0.3), classes=10, epochs=7, batch_size=128)
    for logits, lr in zip(found, (1e-2, 0.3), strict=True):
        expected = sgd_loop(x[:500], y[:500], x[500:], epochs=7, batch=128, lr=lr)
        assert torch.allclose(logits, expected, atol=1e-10)


def test_the_linear_probe_learns_real_classes_and_ignores_scale() -> None:
    x, y = features(3_000)
    (logits,) = linear_probe(x[:2000], y[:2000], x[2000:], classes=10, epochs=100)
    (scaled,) = linear_probe(1e3 * x[:2000] + 5, y[:2000], 1e3 * x[2000:] + 5, classes=10, epochs=100)
    assert (logits.argmax(1) == y[2000:]).double().mean() > 0.6
    assert (logits.argmax(1) == scaled.argmax(1)).double().mean() > 0.99


def logistic_probe(
    train: Tensor, labels: Tensor, test: Tensor, strengths: Sequence[float] = (1.0,), *, classes: int, **options: Any
) -> Iterator[Tensor]:
    """Logits for each strength, on standardised features; each fit starts from the one before."""
    scaler, model = FeatureScaler(train), LogisticRegression(classes)
    for strength in strengths:
        yield model.fit(scaler(train), labels, strength, **options)(scaler(test))


def minimised(x: Tensor, y: Tensor, classes: int, strength: float) -> tuple[Tensor, Tensor]:
    """Weights and bias of multinomial logistic regression: the objective as it is written, in float64."""
    weight = torch.zeros(x.shape[1], classes, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=2000, tolerance_grad=1e-7, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(x @ weight + bias, y) + weight.pow(2).sum() / (2 * strength * len(x))
        loss.backward()
        return loss

    optimizer.step(objective)
    assert weight.grad is not None
    assert weight.grad.abs().max() < 1e-6
    return weight.detach(), bias.detach()


def test_the_logistic_probe_minimises_its_objective() -> None:
    x, y = features(3_000)
    strengths = (1.0, 1e-3, 0.1)
    found = logistic_probe(x[:2000], y[:2000], x[2000:], strengths, classes=10, tolerance=1e-5)
    train, test = standardised(x[:2000], x[2000:])
    for logits, strength in zip(found, strengths, strict=True):
        weight, bias = minimised(train, y[:2000], 10, strength)
        expected = test @ weight + bias
        accuracies = [float((p.argmax(1) == y[2000:]).double().mean()) for p in (logits, expected)]
        assert abs(accuracies[0] - accuracies[1]) <= 0.001
        assert (logits.log_softmax(1) - expected.log_softmax(1)).abs().median() < 0.01


def test_the_logistic_probe_in_float32_is_that_of_scikit_learn() -> None:
    x, y = features(3_000)
    train, test = (part.float() for part in standardised(x[:2000], x[2000:]))
    model = LogisticRegression(10)
    for strength in (1e-3, 1e-2, 1e-1):
        theirs = linear_model.LogisticRegression(C=strength, tol=1e-6, max_iter=5000)
        theirs.fit(train.double().numpy(), y[:2000].numpy())
        expected = torch.from_numpy(theirs.decision_function(test.double().numpy()))
        logits = model.fit(train, y[:2000], strength, tolerance=1e-5)(test)
        assert (logits.argmax(1) == expected.argmax(1)).double().mean() > 0.995
        assert (logits.log_softmax(1) - expected.log_softmax(1)).abs().median() < 0.02


def test_weaker_strengths_are_left_out_once_they_are_no_better(
    pixels: Callable[..., EvalContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With random labels, C = 0.1 is better than all weaker regularisation: two more are tried, the rest is not."""
    fitted: list[tuple[int, float]] = []

    class Noted(LogisticRegression):
        def fit(self, x: Tensor, labels: Tensor, strength: float, **options: Any) -> LogisticRegression:
            fitted.append((len(x), strength))
            return super().fit(x, labels, strength, **options)

    monkeypatch.setattr(probes, "LogisticRegression", Noted)
    context = pixels(random_labels=0.3, logistic_c=(100.0, 1e-1, 1.0, 10.0))
    probes.logistic(context)
    count = len(context.train)
    part = count - count // 10
    assert fitted == [(part, 1e-1), (part, 1.0), (part, 10.0), (count, 1e-1)]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_gradient_of_the_logistic_probe_vanishes(classes: int) -> None:
    """At the minimum W = C X^T (Y - P), and the bias makes the mean probabilities those of the labels."""
    x, y = features(600)
    x, y = x[y < classes], y[y < classes]
    strength = 0.01
    (logits,) = logistic_probe(x, y, x, (strength,), classes=classes, tolerance=1e-6)
    (train,) = standardised(x)
    residual = F.one_hot(y, classes) - logits.softmax(1)
    assert residual.mean(0).abs().max() < 1e-5
    expected = strength * train @ (train.T @ residual) + logits.mean(0)  # features have mean 0: the bias is the mean
    centred = [part - part.mean(1, keepdim=True) for part in (logits, expected)]
    assert (centred[0] - centred[1]).abs().max() < 1e-3 * logits.abs().max()


def test_a_class_without_training_images_is_never_predicted() -> None:
    x, y = features(600)
    seen = y[:500] != 3
    for probe, options in ((linear_probe, {"epochs": 5}), (logistic_probe, {})):
        (logits,) = probe(x[:500][seen], y[:500][seen], x[500:], classes=10, **options)
        assert not (logits.argmax(1) == 3).any()


@pytest.mark.parametrize("present", [[4], [2, 7]])
def test_one_or_two_classes_in_the_training_images(present: list[int]) -> None:
    x, y = features(600)
    seen = torch.isin(y, torch.tensor(present))
    (logits,) = logistic_probe(x[seen], y[seen], x, classes=10)
    assert set(logits.argmax(1).tolist()) == set(present)
    assert (logits[seen].argmax(1) == y[seen]).double().mean() > 0.95


def test_hits_are_labels_among_the_predictions() -> None:
    predicted = torch.tensor([[0, 1], [0, 1], [0, 1]])
    assert probes.hits(predicted, torch.tensor([0, 1, 2])).tolist() == [True, True, False]
    assert probes.hits(predicted[:, 0], torch.tensor([0, 1, 0])).tolist() == [True, False, True]


def test_with_many_classes_top_5_is_reported_too(
    pixels: Callable[..., EvalContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = pixels(probe_epochs=20)
    assert set(probes.linear(context)) == {"linear"}
    monkeypatch.setattr(probes, "MANY_CLASSES", 10)
    found = probes.linear(context)
    logits = linear_probe(context.train, context.train_labels, context.test, classes=10, epochs=20)[0]
    among = [int(label) in row.topk(5).indices.tolist() for row, label in zip(logits, context.test_labels, strict=True)]
    assert found["linear_top5"].value == pytest.approx(np.mean(among), abs=1e-4)
    assert found["linear"].value < found["linear_top5"].value < 1
    assert found["linear_top5"].protocol == "linear probe (SGD, 20 epochs), top-5"


@pytest.mark.parametrize(
    ("part", "probe", "name", "values", "best"),
    [
        ("linear", linear_probe, "probe_lrs", (1e-5, 1e-2, 1.0), 2),
        # The held-out tenth has 200 images, and without random labels C = 0.01 and C = 1000 differ by three of them,
        # which depends on rounding. With 30 % random labels, C = 1000 overfits and loses by about thirty.
        ("logistic", logistic_probe, "logistic_c", (1e-6, 1e-2, 1e3), 1),
    ],
)
def test_settings_are_chosen_on_a_tenth_of_train(
    pixels: Callable[..., EvalContext], part: str, probe: Any, name: str, values: tuple[float, ...], best: int
) -> None:
    context = pixels(random_labels=0.3, **{name: values}, probe_epochs=20)
    found = getattr(probes, part)(context)[part]
    options = {"epochs": 20} if probe is linear_probe else {}
    alone = []
    for value in values:
        (logits,) = probe(context.train, context.train_labels, context.test, (value,), classes=10, **options)
        alone.append(float((logits.argmax(1) == context.test_labels).double().mean()))
    assert found.value == pytest.approx(max(alone), abs=0.02)  # near the best on test images, which were not used
    assert found.value == pytest.approx(alone[best], abs=1e-4)
    assert found.value > alone[0] + 0.02, "the smallest learns next to nothing"
    assert "best of 3 on a tenth of train" in found.protocol
