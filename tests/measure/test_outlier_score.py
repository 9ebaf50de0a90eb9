"""Rows of the prior: a loop's entropies, real foreign images, and no dependence on how many images there are."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

import reference
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.data.sources import load
from glf.measure.outlier_score import DRAWS, neighbour_entropy
from glf.types import Embeddings


def by_loop(rows: torch.Tensor, rho: float, dim: float) -> torch.Tensor:
    """Every image against all others: distances in units of the mean variance, the t's row, its entropy."""
    scale, width, count = float(rows.var(0).mean()), rows.shape[1], len(rows)
    found = []
    for i in range(count):
        squared = [float((rows[i] - rows[j]).pow(2).sum()) / scale * dim / width for j in range(count) if j != i]
        log_kernel = [
            float(
                reference.log_student(reference.scale_for_student(torch.tensor(d).double(), rho, "printed"), rho, dim)
            )
            for d in squared
        ]
        total = math.log(sum(math.exp(value) for value in log_kernel))
        found.append(-sum(math.exp(value - total) * (value - total) for value in log_kernel))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(("rho", "dim"), [(5.0, 16.0), (3.0, 4.0)])
def test_it_is_a_loops(rho: float, dim: float) -> None:
    rows = torch.randn(23, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 5
    torch.testing.assert_close(neighbour_entropy(rows, rho=rho, effective_dim=dim), by_loop(rows, rho, dim))


def test_among_companions_it_is_the_mean_over_batches_of_that_size() -> None:
    rows = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = neighbour_entropy(rows, companions=7)
    assert found.shape == (40,)
    assert (found > 0).all()
    assert (found <= math.log(7)).all()
    assert torch.equal(found, neighbour_entropy(rows, companions=7))
    assert not torch.equal(found, neighbour_entropy(rows, companions=7, seed=1))
    many = torch.stack([neighbour_entropy(rows, companions=7, seed=seed) for seed in range(2, 8)])
    assert float((found - many.mean(0)).abs().max()) < 5 * float(many.std(0).max())


def test_shuffled_images_stand_out_among_real_ones() -> None:
    """Pixels in another order are as far from every image: their rows are flatter than those of all but a few."""
    pixels = torch.from_numpy(load("fashion-mini").pixels[:1000].reshape(1000, -1)).float() / 255
    generator = torch.Generator().manual_seed(0)
    foreign = torch.stack([image[torch.randperm(784, generator=generator)] for image in pixels[:20]])
    found = neighbour_entropy(torch.cat([pixels[20:], foreign]))
    truth = torch.cat([torch.zeros(980), torch.ones(20)])
    assert roc_auc_score(truth, found) > 0.97


def test_no_row_is_longer_than_a_batch_and_every_image_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, whole = [], NeighbourDistributions.pre

    def noted(self: NeighbourDistributions, e: Embeddings) -> torch.Tensor:
        sizes.append(e.z.shape[1])
        return whole(self, e)

    monkeypatch.setattr(NeighbourDistributions, "pre", noted)
    found = neighbour_entropy(torch.randn(1000, 4, generator=torch.Generator().manual_seed(0)), companions=299)
    assert sizes == [300] * 4 * DRAWS  # the last batch of 1000 images is filled up
    assert found.isfinite().all()


@pytest.mark.parametrize("rows", [torch.zeros(1, 3), torch.full((4, 2), torch.nan)])
def test_what_cannot_be_judged_is_an_error(rows: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"too few|not finite"):
        neighbour_entropy(rows)


def test_images_that_are_all_one_have_flat_rows() -> None:
    torch.testing.assert_close(neighbour_entropy(torch.ones(6, 3)), torch.full((6,), math.log(5)))
