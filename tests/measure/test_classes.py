"""Compactness and separability against loops, a worked example, invariances and real pixels."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import calinski_harabasz_score
from torch import Tensor

from glf.data.sources import load_images
from glf.measure.classes import (
    between_share,
    class_means,
    compactness,
    separability,
    similarity_histograms,
    within_variance,
)
from reference import draw

MEASURES = [compactness, within_variance, separability, between_share]


def loops(features: Tensor, labels: Tensor) -> list[float]:
    """All four formulas, one sample at a time."""
    unit = [x / math.sqrt(sum(float(v) ** 2 for v in x)) for x in features.double()]
    names = sorted({int(y) for y in labels})
    means, count = {}, {}
    for k in names:
        rows = [u for u, y in zip(unit, labels, strict=True) if int(y) == k]
        means[k], count[k] = sum(rows) / len(rows), len(rows)
    distances = [float((u - means[int(y)]).norm()) for u, y in zip(unit, labels, strict=True)]
    within = sum(d**2 for d in distances) / len(unit)
    pairs = [float((means[k] - means[m]).norm()) for k in names for m in names if k < m]
    centre = sum(unit) / len(unit)
    between = sum(count[k] / len(unit) * float((means[k] - centre).norm()) ** 2 for k in names)
    return [sum(distances) / len(unit), within, sum(pairs) / len(pairs), between / (between + within)]


def labelled(samples: int, dim: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    labels = torch.randint(classes, (samples,), generator=torch.Generator().manual_seed(seed))
    return draw(samples, dim, seed=seed) + 2 * draw(classes, dim, seed=seed + 1)[labels], labels


@pytest.mark.parametrize(("samples", "dim", "classes"), [(40, 5, 3), (8, 30, 4), (6, 2, 2)], ids=str)
def test_they_equal_the_loops(samples, dim, classes):
    features, labels = labelled(samples, dim, classes)
    expected = loops(features, labels)
    for measure, value in zip(MEASURES, expected, strict=True):
        assert measure(features, labels) == pytest.approx(value, rel=1e-11)
        assert measure(features.float(), labels) == pytest.approx(value, rel=1e-5)


def test_a_worked_example():
    # Two classes at right angles, each of two directions 60 degrees apart about its mean.
    angles = torch.tensor([-30.0, 30.0, 60.0, 120.0], dtype=torch.float64).deg2rad()
    features, labels = torch.stack((angles.cos(), angles.sin()), 1), torch.tensor([3, 3, 8, 8])
    assert compactness(features, labels) == pytest.approx(0.5)
    assert within_variance(features, labels) == pytest.approx(0.25)
    assert separability(features, labels) == pytest.approx(math.sqrt(3 / 2)), "means have length cos 30"
    assert between_share(features, labels) == pytest.approx(0.375 / 0.625)


@pytest.mark.parametrize("measure", MEASURES)
def test_independent_of_lengths_rotation_order_and_label_names(measure):
    features, labels = labelled(50, 6, 4)
    expected = measure(features, labels)
    turned, _ = torch.linalg.qr(draw(6, 6, seed=7))
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    lengths = 0.1 + draw(50, 1, seed=8).abs()
    assert measure(features * lengths, labels) == pytest.approx(expected, rel=1e-11)
    assert measure(1e-8 * features @ turned, labels) == pytest.approx(expected, rel=1e-11)
    assert measure(features[order], labels[order]) == pytest.approx(expected, rel=1e-11)
    assert measure(features, torch.tensor([100, 7, 0, 31])[labels]) == pytest.approx(expected, rel=1e-11)


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 8), st.integers(2, 30))
def test_bounds_and_decomposition_of_the_variance(seed, classes, dim, samples):
    labels = torch.arange(samples) % classes
    features = draw(samples, dim, seed=seed) * (1 + seed % 3) + draw(classes, dim, seed=seed + 1)[labels] * (seed % 5)
    variance = within_variance(features, labels)
    assert -1e-12 <= compactness(features, labels) <= math.sqrt(variance) + 1e-9
    assert variance <= 1 + 1e-12
    assert 0 <= separability(features, labels) <= 2 + 1e-12
    unit = features / features.norm(dim=1, keepdim=True)
    total = float((unit - unit.mean(0)).pow(2).sum(1).mean())
    if total > 1e-9:
        assert between_share(features, labels) == pytest.approx(1 - variance / total, abs=1e-9)


def test_separability_shrinks_with_the_cloud_and_the_between_share_does_not():
    features, labels = labelled(400, 8, 4)
    unit = features / features.norm(dim=1, keepdim=True)
    corner = unit * 1e-3 + draw(8, seed=5)
    assert separability(corner, labels) < 1e-2 * separability(features, labels)
    assert between_share(corner, labels) == pytest.approx(between_share(features, labels), abs=0.1)


def test_collapse():
    labels = torch.arange(12) % 3
    per_class = draw(3, 5)[labels]
    assert compactness(per_class, labels) == pytest.approx(0, abs=1e-9)
    assert within_variance(per_class, labels) == pytest.approx(0, abs=1e-15)
    assert between_share(per_class, labels) == pytest.approx(1)
    point = torch.full((12, 5), 0.3)
    assert separability(point, labels) == pytest.approx(0, abs=1e-15)
    assert between_share(point, labels) == 0


def test_a_class_of_one_is_its_own_mean():
    features, labels = labelled(20, 4, 2)
    with_one = torch.cat((features, draw(1, 4, seed=9))), torch.cat((labels, torch.tensor([5])))
    assert within_variance(*with_one) == pytest.approx(20 / 21 * within_variance(features, labels))
    assert compactness(*with_one) == pytest.approx(20 / 21 * compactness(features, labels))
    every = torch.arange(20)
    assert within_variance(features, every) == pytest.approx(0, abs=1e-15)
    assert between_share(features, every) == pytest.approx(1)


def test_a_single_class_has_compactness_but_no_separability():
    features, labels = draw(30, 4), torch.full((30,), 6)
    assert 0 < compactness(features, labels) < 1
    assert between_share(features, labels) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="all 30 samples are of one class: separability needs at least two"):
        separability(features, labels)


@pytest.mark.parametrize("measure", MEASURES)
def test_invalid_input_is_an_error(measure):
    features, labels = labelled(10, 3, 2)
    labels[[2, 5]] = -1
    with pytest.raises(ValueError, match=r"2 of 10 samples have no label .*: leave them out"):
        measure(features, labels)
    with pytest.raises(ValueError, match="no features"):
        measure(features[:0], labels[:0])
    features[4, 0] = torch.inf
    with pytest.raises(ValueError, match="feature vector 4 is not finite"):
        measure(features, labels.abs())


@pytest.mark.parametrize("size", [1, 7, 99, 100])
def test_the_block_size_changes_nothing(monkeypatch, size):
    features, labels = labelled(100, 6, 9)
    whole = [measure(features, labels) for measure in MEASURES]
    monkeypatch.setattr("glf.measure.blocks.BLOCK_SIZE", size)
    assert [measure(features, labels) for measure in MEASURES] == pytest.approx(whole, rel=1e-12)


def test_real_pixels_against_scikit_learn():
    images = load_images("fashion-mini", "test")
    x = torch.from_numpy(images.pixels.reshape(len(images), -1) / 255.0)
    labels = torch.from_numpy(images.targets)
    share = between_share(x, labels)
    # Calinski and Harabasz: (B / (K - 1)) / (W / (n - K)), of unit features.
    theirs = calinski_harabasz_score((x / x.norm(dim=1, keepdim=True)).numpy(), images.targets)
    assert share / (1 - share) == pytest.approx(theirs * 9 / (len(x) - 10), rel=1e-9)
    shuffled = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    assert between_share(x, shuffled) == pytest.approx(9 / (len(x) - 1), rel=0.3), "random labels"
    assert compactness(x, labels) < compactness(x, shuffled)
    assert separability(x, labels) > 5 * separability(x, shuffled)
    means, _, count = class_means(x, labels)
    assert means.shape == (10, 784)
    assert int(count.sum()) == len(x)


def test_similarity_histograms_equal_a_loop_whatever_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels, bins = draw(37, 5, seed=3), torch.arange(37) % 3, 8
    expected = torch.zeros(2, bins, dtype=torch.float64)
    for i in range(37):
        for j in range(i + 1, 37):
            cosine = float(features[i] @ features[j] / features[i].norm() / features[j].norm())
            expected[int(labels[i] != labels[j]), int((cosine + 1) / 2 * bins)] += 1
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(torch.stack(similarity_histograms(features, labels, bins)), expected)
    monkeypatch.setattr("glf.measure.blocks.BLOCK_SIZE", 10)
    torch.testing.assert_close(torch.stack(similarity_histograms(features, labels, bins)), expected)
