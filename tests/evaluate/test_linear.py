"""The linear probe is the paper's: a plain loop over torch's own SGD gives the same classifier."""

import torch
from torch import nn

from glf.data import sources
from glf.evaluate.linear import linear_probe


def features(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = sources.load("fashion-mini")
    x = torch.from_numpy(images.pixels[:count].reshape(count, -1)[:, ::7] / 255.0)
    return x, torch.from_numpy(images.targets[:count])


def plain_loop(x: torch.Tensor, y: torch.Tensor, queries: torch.Tensor, epochs: int, batch: int) -> torch.Tensor:
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    x, queries = (x - mean) / std, (queries - mean) / std
    model = nn.Linear(x.shape[1], 10).double()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=5e-6)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1e-4) ** (epoch / (epochs - 1))
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model(queries).detach()


def test_equals_a_plain_loop() -> None:
    x, y = features(650)
    mine = linear_probe(x[:500], y[:500], x[500:], classes=10, epochs=7, batch_size=128)
    theirs = plain_loop(x[:500], y[:500], x[500:], epochs=7, batch=128)
    assert torch.allclose(mine, theirs, atol=1e-10)


def test_learns_real_classes_and_ignores_scale() -> None:
    x, y = features(3_000)
    logits = linear_probe(x[:2000], y[:2000], x[2000:], classes=10, epochs=100)
    scaled = linear_probe(1e3 * x[:2000] + 5, y[:2000], 1e3 * x[2000:] + 5, classes=10, epochs=100)
    assert (logits.argmax(1) == y[2000:]).double().mean() > 0.6
    assert (logits.argmax(1) == scaled.argmax(1)).double().mean() > 0.99
