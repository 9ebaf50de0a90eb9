"""Near-duplicates against a loop over all pairs; blocks, chains, copies of one image."""

import numpy as np
import pytest
import torch
from torch import Tensor

from glf.data.sources import load_images
from glf.measure import blocks
from glf.measure.duplicates import near_duplicates


def looped(features: Tensor, threshold: float) -> tuple[list[set[int]], list[float]]:
    """Groups as sets, and the largest cosine of each image, in double precision."""
    x = features.double() - features.double().mean(0)
    x = x / x.norm(dim=1, keepdim=True)
    group = [{i} for i in range(len(x))]
    largest = [-1.0] * len(x)
    for i in range(len(x)):
        for j in range(i):
            cosine = float(x[i] @ x[j])
            largest[i], largest[j] = max(largest[i], cosine), max(largest[j], cosine)
            if cosine >= threshold and group[i] is not group[j]:
                joined = group[i] | group[j]
                for member in joined:
                    group[member] = joined
    return group, largest


@pytest.fixture(scope="module")
def clothes() -> Tensor:
    """Real images, and noisy copies of some of them."""
    pixels = load_images("fashion-mini", "test").pixels[:90].reshape(90, -1).astype(np.float32)
    noise = np.random.default_rng(0).normal(0, 4, (12, 784)).astype(np.float32)
    return torch.from_numpy(np.concatenate([pixels, pixels[::8] + noise]))


@pytest.mark.parametrize("block", [7, 40, 2048])
@pytest.mark.parametrize("threshold", [0.8, 0.95, 0.995])
def test_groups_are_those_of_a_loop(clothes, monkeypatch, block, threshold):
    monkeypatch.setattr(blocks, "BLOCK_SIZE", block)
    groups, similarity = near_duplicates(clothes, threshold)
    expected, largest = looped(clothes, threshold)
    for image, members in enumerate(expected):
        same = set(torch.nonzero(groups == groups[image]).flatten().tolist()) if groups[image] else {image}
        assert same == members
    np.testing.assert_allclose(similarity, largest, atol=1e-6)
    numbers = groups.unique().tolist()
    assert numbers == list(range(len(numbers))), "groups are counted from one, without gaps"


def test_the_noisy_copies_are_found_and_scale_does_not_matter(clothes):
    groups, _ = near_duplicates(clothes, 0.98)
    assert all(groups[8 * i] == groups[90 + i] > 0 for i in range(12))
    assert torch.equal(near_duplicates(100 * clothes, 0.98)[0], groups)


def test_a_thousand_copies_are_one_group(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_SIZE", 300)
    features = torch.randn(3, 8).repeat_interleave(torch.tensor([1000, 500, 1]), 0)
    groups, similarity = near_duplicates(features, 0.999)
    assert groups.bincount().tolist() == [1, 1000, 500]
    assert float(similarity[:1500].min()) > 0.999


def test_a_chain_is_one_group():
    angles = torch.linspace(0, 3, 30)
    features = torch.stack([angles.cos(), angles.sin()], 1)
    features = torch.cat([features, -features])  # so that the mean is zero
    groups, _ = near_duplicates(features, 0.99)
    assert set(groups[:30].tolist()) == {1}, "the ends are nearly opposite, each step is small"
    assert float(features[0] @ features[29]) < 0


def test_features_that_are_not_finite_are_an_error():
    features = torch.randn(5, 3)
    features[3, 1] = torch.nan
    with pytest.raises(ValueError, match="feature vector 3 is not finite"):
        near_duplicates(features)
