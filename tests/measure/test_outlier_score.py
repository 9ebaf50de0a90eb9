"""Outlier scores against a loop, real foreign images, and independence of the number of images."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

import reference
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.data.sources import load_images
from glf.measure.outlier_score import DRAWS, neighbour_entropy
from glf.types import Embeddings


def by_loop(features: torch.Tensor, rho: float, dim: float) -> torch.Tensor:
    """Each image against all others: distances in units of the mean variance, Student-t kernel, entropy."""
    scale, width, count = float(features.var(0).mean()), features.shape[1], len(features)
    found = []
    for i in range(count):
        squared = [
            float((features[i] - features[j]).pow(2).sum()) / scale * dim / width for j in range(count) if j != i
        ]
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
def test_it_equals_a_loop(rho: float, dim: float) -> None:
    features = torch.randn(23, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3 + 5
    torch.testing.assert_close(neighbour_entropy(features, rho=rho, effective_dim=dim), by_loop(features, rho, dim))


def test_among_companions_it_is_the_mean_over_batches_of_that_size() -> None:
    features = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = neighbour_entropy(features, companions=7)
    assert found.shape == (40,)
    assert (found > 0).all()
    assert (found <= math.log(7)).all()
    assert torch.equal(found, neighbour_entropy(features, companions=7))
    assert not torch.equal(found, neighbour_entropy(features, companions=7, seed=1))
    many = torch.stack([neighbour_entropy(features, companions=7, seed=seed) for seed in range(2, 8)])
    assert float((found - many.mean(0)).abs().max()) < 5 * float(many.std(0).max())


def test_shuffled_images_stand_out_among_real_ones() -> None:
    """Shuffled pixels are equally far from all images: their distributions are flatter than nearly all others."""
    pixels = torch.from_numpy(load_images("fashion-mini").pixels[:1000].reshape(1000, -1)).float() / 255
    generator = torch.Generator().manual_seed(0)
    foreign = torch.stack([image[torch.randperm(784, generator=generator)] for image in pixels[:20]])
    found = neighbour_entropy(torch.cat([pixels[20:], foreign]))
    truth = torch.cat([torch.zeros(980), torch.ones(20)])
    assert roc_auc_score(truth, found) > 0.97


def test_every_image_is_compared_in_batches_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, log_pre = [], NeighbourDistributions.log_pre

    def noted(self: NeighbourDistributions, e: Embeddings) -> torch.Tensor:
        sizes.append(e.z.shape[1])
        return log_pre(self, e)

    monkeypatch.setattr(NeighbourDistributions, "log_pre", noted)
    found = neighbour_entropy(torch.randn(1000, 4, generator=torch.Generator().manual_seed(0)), companions=299)
    assert sizes == [300] * 4 * DRAWS  # the last batch of 1000 images is filled up
    assert found.isfinite().all()


@pytest.mark.parametrize("features", [torch.zeros(1, 3), torch.full((4, 2), torch.nan)])
def test_invalid_features_are_an_error(features: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"too few|not finite"):
        neighbour_entropy(features)


def test_identical_images_have_uniform_distributions() -> None:
    torch.testing.assert_close(neighbour_entropy(torch.ones(6, 3)), torch.full((6,), math.log(5)))
