"""Measures of geometry against loops and known distributions."""

import math

import pytest
import torch
from torch import Tensor

from glf.data.sources import load_images
from glf.measure.geometry import alignment, effective_rank, rank_me, spectrum, spread, uniformity
from reference import cos, draw


def cloud(samples: int, dim: int, values: list[float], seed: int = 0) -> Tensor:
    """Centred samples with exactly these singular values."""
    k = len(values)
    left = draw(samples, k, seed=seed)
    u, _ = torch.linalg.qr(left - left.mean(0))
    v, _ = torch.linalg.qr(draw(dim, k, seed=seed + 1))
    return u @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ v.T


def rank_of(values: list[float]) -> float:
    total = sum(s**2 for s in values)
    return math.exp(-sum(s**2 / total * math.log(s**2 / total) for s in values))


@pytest.mark.parametrize(
    ("samples", "dim"), [(50, 8), (9, 8), (8, 8), (6, 40)], ids=["more", "one more", "as many", "fewer"]
)
@pytest.mark.parametrize("values", [[3.0], [2.0] * 5, [5.0, 3.0, 1.0, 0.2], [1.0, 1e-9]], ids=str)
def test_the_effective_rank_of_a_known_spectrum(samples, dim, values):
    expected = rank_of(values)
    features = cloud(samples, dim, values)
    assert effective_rank(features) == pytest.approx(expected, abs=1e-3)
    assert effective_rank(features * 1e-3 + draw(dim, seed=9)) == pytest.approx(expected, abs=1e-3)
    assert effective_rank(features.float() + 2) == pytest.approx(expected, abs=1e-3)


def test_the_effective_rank_is_at_most_the_possible_rank():
    assert 15.5 < effective_rank(draw(4000, 16)) <= 16
    assert 4.5 < effective_rank(draw(6, 4000)) <= 5


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e3, -7.7e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_features_have_neither_rank_nor_spread(value, dtype):
    vector = value * (1 + draw(12, seed=3).abs()).to(dtype)
    features = vector.expand(257, 12)
    assert effective_rank(features) == 0
    assert spread(features) == 0


def test_spread():
    uniform = draw(4000, 16)
    assert spread(uniform) == pytest.approx(1, abs=0.02)
    assert spread(uniform * draw(4000, 1, seed=1).abs()) == spread(uniform), "lengths do not matter"
    assert spread(torch.eye(4).repeat(2, 1) * torch.tensor([1.0, -1.0]).repeat_interleave(4).unsqueeze(1)) == 1
    two_poles = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    assert spread(two_poles) == 0.5, "one of four directions, mean standard deviation 1/4, times the root of 4"
    assert 0 < spread(uniform + 10) < 0.15


def about_origin(samples: int, dim: int, values: list[float]) -> Tensor:
    """With these singular values exactly, and not centred."""
    u, _ = torch.linalg.qr(draw(samples, len(values), seed=5) + 1)
    v, _ = torch.linalg.qr(draw(dim, len(values), seed=6))
    return u @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ v.T


@pytest.mark.parametrize(("samples", "dim"), [(50, 8), (8, 8), (6, 40), (4, 4)], ids=str)
@pytest.mark.parametrize("values", [[3.0], [2.0] * 4, [5.0, 3.0, 1.0, 0.2], [1.0, 1e-9]], ids=str)
def test_rank_me_of_a_known_spectrum(samples, dim, values):
    p = [value / sum(values) for value in values]
    expected = math.exp(-sum(x * math.log(x) for x in p))
    features = about_origin(samples, dim, values)
    assert rank_me(features) == pytest.approx(expected, rel=1e-9)
    assert rank_me(1e-6 * features) == pytest.approx(expected, rel=1e-9), "scale-free"
    turned, _ = torch.linalg.qr(draw(dim, dim, seed=7))
    assert rank_me((features @ turned).flip(0)) == pytest.approx(expected, rel=1e-9), "rotation, order"


def test_rank_me_is_not_centred_and_the_effective_rank_is():
    features = draw(400, 10)
    assert 9.9 < rank_me(features) <= 10
    assert rank_me(features + 100) < 1.3
    assert effective_rank(features + 100) == effective_rank(features)
    assert rank_me(torch.zeros(5, 3)) == 0
    assert rank_me(torch.ones(5, 3)) == pytest.approx(1, abs=1e-12)
    assert rank_me(torch.eye(3)[:2]) == pytest.approx(2)


def test_ranks_of_real_pixels_match_the_eigenvalues():
    x = pixels(300)
    for features in (x, x[:60]):
        values = torch.linalg.eigvalsh(features @ features.T).clamp_min(0).sqrt()
        p = values / values.sum()
        assert rank_me(features) == pytest.approx(float(torch.special.entr(p).sum().exp()), rel=1e-5)
        power = torch.linalg.eigvalsh(torch.cov(features.T)).clamp_min(0)
        p = power / power.sum()
        assert effective_rank(features) == pytest.approx(float(torch.special.entr(p).sum().exp()), abs=1e-4)


def pixels(count: int) -> Tensor:
    return torch.from_numpy(load_images("fashion-mini", "test").pixels[:count].reshape(count, -1) / 255.0)


def test_alignment_equals_a_loop():
    a, b = draw(9, 5), draw(9, 5, seed=1)
    expected = sum(2 - 2 * float(cos(x, y)) for x, y in zip(a, b, strict=True)) / 9
    assert alignment(a, b) == pytest.approx(expected, rel=1e-12)
    assert alignment(a, b) == pytest.approx(alignment(b, a), rel=1e-12)
    assert alignment(3 * a, b * torch.arange(1, 10).unsqueeze(1)) == pytest.approx(expected, rel=1e-12)
    assert alignment(a, 7 * a) == pytest.approx(0, abs=1e-15)
    assert alignment(a, -a) == pytest.approx(4)


def potential_of_pairs(x: Tensor, t: float) -> float:
    pairs = [(i, j) for i in range(len(x)) for j in range(i)]
    terms = [math.exp(-t * (2 - 2 * float(cos(x[i], x[j])))) for i, j in pairs]
    return math.log(sum(terms) / len(terms))


@pytest.mark.parametrize("t", [2.0, 0.3, 5.0])
def test_uniformity_equals_a_loop(t):
    for x in (draw(13, 4), pixels(13)):
        expected = potential_of_pairs(x, t)
        assert uniformity(x, t) == pytest.approx(expected, rel=1e-11)
        assert uniformity(x.flip(0) * 3, t) == pytest.approx(expected, rel=1e-11), "independent of order and lengths"
    turned, _ = torch.linalg.qr(draw(4, 4, seed=7))
    x = draw(13, 4)
    assert uniformity(x @ turned, t) == pytest.approx(uniformity(x, t), rel=1e-11)


def test_uniformity_of_known_distributions():
    assert uniformity(torch.ones(5, 3)) == pytest.approx(0, abs=1e-12)
    assert uniformity(torch.eye(6), t=2) == pytest.approx(-4)
    assert uniformity(torch.tensor([[1.0, 0], [-1.0, 0]]), t=500) == pytest.approx(-2000), "exp would underflow to 0"
    circle = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)[:-1]
    even = torch.stack((circle.cos(), circle.sin()), 1)
    # The mean of exp(-t(2 - 2 cos)) over the circle is exp(-2t) I0(2t); one pair in 2000 is a point with itself.
    expected = math.log((2000 * math.exp(-4) * float(torch.special.i0(torch.tensor(4.0).double())) - 1) / 1999)
    assert uniformity(even) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("size", [1, 7, 64, 199, 200])
def test_the_block_size_changes_nothing(monkeypatch, size):
    x, y = draw(200, 24), draw(200, 24, seed=1)
    whole = effective_rank(x), rank_me(x), alignment(x, y), uniformity(x)
    monkeypatch.setattr("glf.measure.blocks.BLOCK_SIZE", size)
    assert (effective_rank(x), rank_me(x), alignment(x, y), uniformity(x)) == pytest.approx(whole, rel=1e-11)


def test_single_precision_is_computed_in_double():
    x, y = draw(300, 8).float(), draw(300, 8, seed=1).float()
    assert rank_me(x) == rank_me(x.double())
    assert uniformity(x) == uniformity(x.double())
    assert alignment(x, y) == alignment(x.double(), y.double())
    near = x + 1e-4 * y
    exact = alignment(x.double(), near.double())
    assert alignment(x, near) == exact
    assert 0 < exact < 1e-7


def test_invalid_features_are_an_error():
    with pytest.raises(ValueError, match="uniformity needs at least 2 samples, not 1"):
        uniformity(torch.ones(1, 3))
    bad = draw(3000, 3)
    bad[2500, 1] = torch.nan
    for measure in (effective_rank, rank_me, uniformity):
        with pytest.raises(ValueError, match="feature vector 2500 is not finite"):
            measure(bad)
    with pytest.raises(ValueError, match="not finite"):
        alignment(bad, bad)


def test_the_spectrum_has_the_share_of_each_direction() -> None:
    found = spectrum(cloud(50, 8, [3.0, 1.0, 2.0]))
    torch.testing.assert_close(found[:3], torch.tensor([9.0, 4.0, 1.0], dtype=torch.float64) / 14)
    assert float(found[3:].abs().max()) < 1e-12
    assert not spectrum(torch.ones(9, 4)).any()
