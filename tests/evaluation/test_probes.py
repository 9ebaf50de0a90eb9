"""The probes: a plain loop over torch's own SGD gives the same classifier, scikit-learn's regression the same rows."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from glf.data import sources
from glf.evaluation import probes
from glf.evaluation.probes import linear_probe, logistic_probe


def features(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = sources.load_images("fashion-mini")
    x = torch.from_numpy(images.pixels[:count].reshape(count, -1)[:, ::7] / 255.0)
    return x, torch.from_numpy(images.targets[:count])


def plain_loop(
    x: torch.Tensor, y: torch.Tensor, queries: torch.Tensor, epochs: int, batch: int, lr: float
) -> torch.Tensor:
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    x, queries = (x - mean) / std, (queries - mean) / std
    model = nn.Linear(x.shape[1], 10).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-6)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1e-4) ** (epoch / (epochs - 1))
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model(queries).detach()


def test_equals_a_plain_loop_at_every_rate() -> None:
    x, y = features(650)
    mine = linear_probe(x[:500], y[:500], x[500:], classes=10, epochs=7, batch_size=128, rates=(1e-2, 0.3))
    for logits, rate in zip(mine, (1e-2, 0.3), strict=True):
        theirs = plain_loop(x[:500], y[:500], x[500:], epochs=7, batch=128, lr=rate)
        assert torch.allclose(logits, theirs, atol=1e-10)


def test_learns_real_classes_and_ignores_scale() -> None:
    x, y = features(3_000)
    (logits,) = linear_probe(x[:2000], y[:2000], x[2000:], classes=10, epochs=100)
    (scaled,) = linear_probe(1e3 * x[:2000] + 5, y[:2000], 1e3 * x[2000:] + 5, classes=10, epochs=100)
    assert (logits.argmax(1) == y[2000:]).double().mean() > 0.6
    assert (logits.argmax(1) == scaled.argmax(1)).double().mean() > 0.99


@pytest.mark.parametrize("held", [True, False])
def test_logistic_regression_is_scikit_learns(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    if not held:  # more than is kept: standardised block by block
        monkeypatch.setattr(probes, "HELD", 0)
        monkeypatch.setattr(probes, "ROWS", 333)
    x, y = features(3_000)
    strengths = (1.0, 1e-3, 0.1)
    found = logistic_probe(x[:2000], y[:2000], x[2000:], classes=10, strengths=strengths)
    mean, deviation = x[:2000].mean(0), x[:2000].std(0).clamp_min(1e-6)
    train, test = ((part - mean) / deviation for part in (x[:2000], x[2000:]))
    for logits, strength in zip(found, strengths, strict=True):
        theirs = LogisticRegression(C=strength, max_iter=3000, tol=1e-6).fit(train, y[:2000])
        right = [float((p == y[2000:]).double().mean()) for p in (logits.argmax(1), torch.tensor(theirs.predict(test)))]
        assert abs(right[0] - right[1]) <= 0.001
        expected = torch.tensor(theirs.predict_log_proba(test))
        assert (logits.log_softmax(1) - expected).abs().median() < 0.01


def test_a_class_that_nobody_has_shown() -> None:
    x, y = features(600)
    seen = y[:500] != 3
    for probe, options in ((linear_probe, {"epochs": 5}), (logistic_probe, {})):
        (logits,) = probe(x[:500][seen], y[:500][seen], x[500:], classes=10, **options)
        assert not (logits.argmax(1) == 3).any()
