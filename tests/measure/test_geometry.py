"""The shape of clouds whose shape is known."""

import math

import pytest
import torch
from torch import Tensor

from glf.measure.geometry import effective_rank, spread
from reference import draw


def cloud(samples: int, dim: int, deviations: list[float], seed: int = 0) -> Tensor:
    """Centred, with these singular values exactly."""
    k = len(deviations)
    left = draw(samples, k, seed=seed)
    u, _ = torch.linalg.qr(left - left.mean(0))
    v, _ = torch.linalg.qr(draw(dim, k, seed=seed + 1))
    return u @ torch.diag(torch.tensor(deviations, dtype=torch.float64)) @ v.T


def rank_of(deviations: list[float]) -> float:
    total = sum(s**2 for s in deviations)
    return math.exp(-sum(s**2 / total * math.log(s**2 / total) for s in deviations))


@pytest.mark.parametrize(
    ("samples", "dim"), [(50, 8), (9, 8), (8, 8), (6, 40)], ids=["more", "one more", "as many", "fewer"]
)
@pytest.mark.parametrize("deviations", [[3.0], [2.0] * 5, [5.0, 3.0, 1.0, 0.2], [1.0, 1e-9]], ids=str)
def test_the_effective_rank_of_a_known_spectrum(samples, dim, deviations):
    expected = rank_of(deviations)
    features = cloud(samples, dim, deviations)
    assert effective_rank(features) == pytest.approx(expected, abs=1e-3)
    assert effective_rank(features * 1e-3 + draw(dim, seed=9)) == pytest.approx(expected, abs=1e-3)
    assert effective_rank(features.float() + 2) == pytest.approx(expected, abs=1e-3)


def test_the_effective_rank_is_at_most_what_there_can_be():
    assert 15.5 < effective_rank(draw(4000, 16)) <= 16
    assert 4.5 < effective_rank(draw(6, 4000)) <= 5


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e3, -7.7e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_cloud_has_neither_rank_nor_spread(value, dtype):
    row = value * (1 + draw(12, seed=3).abs()).to(dtype)
    features = row.expand(257, 12)
    assert effective_rank(features) == 0
    assert spread(features) == 0


def test_spread():
    uniform = draw(4000, 16)
    assert spread(uniform) == pytest.approx(1, abs=0.02)
    assert spread(uniform * draw(4000, 1, seed=1).abs()) == spread(uniform), "lengths do not count"
    assert spread(torch.eye(4).repeat(2, 1) * torch.tensor([1.0, -1.0]).repeat_interleave(4).unsqueeze(1)) == 1
    two_poles = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    assert spread(two_poles) == 0.5, "one of four directions, mean deviation 1/4, times the root of 4"
    assert 0 < spread(uniform + 10) < 0.15
