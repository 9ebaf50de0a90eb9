"""Near-duplicates against a loop over all pairs; blocks, chains, copies of one image."""

import numpy as np
import pytest
import torch
from torch import Tensor

from glf.data.sources import load
from glf.measure import blocks
from glf.measure.duplicates import near_duplicates


def looped(rows: Tensor, least: float) -> tuple[list[set[int]], list[float]]:
    """Groups as sets, and each row's largest cosine, in double precision."""
    x = rows.double() - rows.double().mean(0)
    x = x / x.norm(dim=1, keepdim=True)
    group = [{i} for i in range(len(x))]
    largest = [-1.0] * len(x)
    for i in range(len(x)):
        for j in range(i):
            cosine = float(x[i] @ x[j])
            largest[i], largest[j] = max(largest[i], cosine), max(largest[j], cosine)
            if cosine >= least and group[i] is not group[j]:
                joined = group[i] | group[j]
                for member in joined:
                    group[member] = joined
    return group, largest


@pytest.fixture(scope="module")
def clothes() -> Tensor:
    """Real images, of which some are there again with a little noise."""
    pixels = load("fashion-mini", "test").pixels[:90].reshape(90, -1).astype(np.float32)
    noise = np.random.default_rng(0).normal(0, 4, (12, 784)).astype(np.float32)
    return torch.from_numpy(np.concatenate([pixels, pixels[::8] + noise]))


@pytest.mark.parametrize("block", [7, 40, 2048])
@pytest.mark.parametrize("least", [0.8, 0.95, 0.995])
def test_groups_are_those_of_a_loop(clothes, monkeypatch, block, least):
    monkeypatch.setattr(blocks, "ROWS", block)
    groups, similarity = near_duplicates(clothes, least)
    expected, largest = looped(clothes, least)
    for row, members in enumerate(expected):
        same = set(torch.nonzero(groups == groups[row]).flatten().tolist()) if groups[row] else {row}
        assert same == members
    np.testing.assert_allclose(similarity, largest, atol=1e-6)
    numbers = groups.unique().tolist()
    assert numbers == list(range(len(numbers))), "groups are counted from one, without gaps"


def test_the_noisy_copies_are_found_and_scale_does_not_matter(clothes):
    groups, _ = near_duplicates(clothes, 0.98)
    assert all(groups[8 * i] == groups[90 + i] > 0 for i in range(12))
    assert torch.equal(near_duplicates(100 * clothes, 0.98)[0], groups)


def test_a_thousand_copies_are_one_group(monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", 300)
    rows = torch.randn(3, 8).repeat_interleave(torch.tensor([1000, 500, 1]), 0)
    groups, similarity = near_duplicates(rows, 0.999)
    assert groups.bincount().tolist() == [1, 1000, 500]
    assert float(similarity[:1500].min()) > 0.999


def test_a_chain_hangs_together():
    angles = torch.linspace(0, 3, 30)
    rows = torch.stack([angles.cos(), angles.sin()], 1)
    rows = torch.cat([rows, -rows])  # so that the mean is zero
    groups, _ = near_duplicates(rows, 0.99)
    assert set(groups[:30].tolist()) == {1}, "the ends are nearly opposite, each step is small"
    assert float(rows[0] @ rows[29]) < 0


def test_rows_that_are_not_finite_are_named():
    rows = torch.randn(5, 3)
    rows[3, 1] = torch.nan
    with pytest.raises(ValueError, match="row 3 of the features is not finite"):
        near_duplicates(rows)
