"""Statistics of a batch against loops in float64 over quadruples and pairs, and on known distributions."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from glf.measure import batch
from glf.measure.geometry import effective_rank, full_rank
from glf.measure.geometry import spread as rounded_spread
from glf.types import Embeddings


def draw(seed: int, n: int, scales: Tensor) -> Tensor:
    """Skewed samples with covariance diag(scales^2) and a non-zero mean."""
    generator = torch.Generator().manual_seed(seed)
    noise = -torch.log(torch.rand(n, len(scales), generator=generator, dtype=torch.float64)) - 1  # variance 1
    return 3 + noise * scales


def test_both_traces_are_means_over_quadruples() -> None:
    """tr C^2 and (tr C)^2 are expectations over four distinct samples: here, the mean over all quadruples."""
    x = draw(0, 6, torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64))
    of_square, squared = 0.0, 0.0
    quadruples = list(permutations(range(6), 4))
    for i, j, k, m in quadruples:
        a, b = x[i] - x[j], x[k] - x[m]
        of_square += float(a @ b) ** 2 / 4 / len(quadruples)
        squared += float((a @ a) * (b @ b)) / 4 / len(quadruples)
    found = float(batch.participation(batch.centred_gram(x), width=1000))  # large enough not to bound the result
    assert found == pytest.approx(squared / of_square, rel=1e-10)


def test_a_small_sample_of_a_wide_distribution_shows_the_rank_of_the_distribution() -> None:
    scales = torch.cat((torch.ones(64), torch.zeros(64))).double()  # 64 directions of 128
    found = [float(batch.participation(batch.centred_gram(draw(seed, 16, scales)), 128)) for seed in range(40)]
    assert sum(found) / 40 == pytest.approx(64, rel=0.1)
    naive = [effective_rank(draw(seed, 16, scales)) for seed in range(5)]
    assert max(naive) <= 15, "the spectrum of the sample itself has at most n - 1 values"


def test_participation_of_simple_distributions() -> None:
    line = torch.arange(8.0).double()[:, None] * torch.tensor([1.0, 2.0, 3.0])
    assert float(batch.participation(batch.centred_gram(line), 3)) == pytest.approx(1.0)
    assert float(batch.participation(batch.centred_gram(torch.ones(8, 3)), 3)) == 0.0
    wide = draw(3, 4, torch.ones(200).double())
    assert float(batch.participation(batch.centred_gram(wide), 200)) <= 200 + 1e-9


@pytest.mark.parametrize(("n", "d"), [(40, 200), (200, 40), (101, 100)])
def test_full_rank_is_the_rank_of_an_isotropic_sample(n: int, d: int) -> None:
    generator = torch.Generator().manual_seed(0)
    found = [effective_rank(torch.randn(n, d, generator=generator, dtype=torch.float64)) for _ in range(5)]
    assert full_rank(n, d) == pytest.approx(sum(found) / 5, rel=0.02)


def test_clumping_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    x = centres[torch.arange(20) % 5] + 0.12 * torch.randn(20, 7, generator=generator, dtype=torch.float64)
    squares = [[float((a - b).pow(2).sum()) for b in x] for a in x]
    mean = sum(map(sum, squares)) / (20 * 19)
    twins = sum(any(squares[i][j] <= 0.01 * mean for j in range(20) if j != i) for i in range(20)) / 20
    pairs = [squares[i][j] for i in range(20) for j in range(20) if j != i]
    between = sum(0.01 * mean < s < 0.25 * mean for s in pairs) / len(pairs)
    found = batch.clumping(batch.centred_gram(x))
    assert 0 < twins < 1, "not a trivial case"
    assert 0 < between < 1
    assert [float(value) for value in found] == pytest.approx([twins, between])


def test_a_line_is_not_a_set_of_points() -> None:
    x = torch.rand(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    twins, between = (float(value) for value in batch.clumping(batch.centred_gram(x)))
    assert twins == 1.0
    assert between == pytest.approx(0.29, abs=0.03)  # pairs at 0.041 to 0.204 of the length: 0.366 - 0.080


def test_prototypes_used_against_a_count() -> None:
    generator = torch.Generator().manual_seed(2)
    z, prototypes = torch.randn(30, 4, generator=generator), torch.randn(12, 4, generator=generator)
    nearest = {max(range(12), key=lambda k: float(torch.cosine_similarity(x, prototypes[k], dim=0))) for x in z}
    assert float(batch.prototypes_used(z, prototypes)) == pytest.approx(len(nearest) / (12 * (1 - (11 / 12) ** 30)))


def test_embedding_statistics() -> None:
    z = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = batch.embedding_statistics(Embeddings(z=z))
    assert set(found) == {"z/scale", "z/spread", "z/rank", "z/twins", "z/between"}
    assert not any(value.requires_grad for value in found.values())
    assert float(found["z/scale"]) == pytest.approx(float(z[0].detach().pow(2).mean().sqrt()))
    assert float(found["z/spread"]) == pytest.approx(rounded_spread(z[0].detach()), abs=1e-4)
    assert "prototypes/used" in batch.embedding_statistics(Embeddings(z=z, prototypes=torch.eye(8)))
    without_shares = Embeddings(z=z, prototypes=torch.eye(8), teacher_prototypes=torch.eye(8))
    assert "prototypes/used" not in batch.embedding_statistics(without_shares)
    assert "z/rank" not in batch.embedding_statistics(Embeddings(z=z[:, :3])), "three samples are too few"


def test_the_cost_does_not_grow_with_the_batch() -> None:
    z = torch.randn(1, 5_000, 2, generator=torch.Generator().manual_seed(0))
    few = batch.embedding_statistics(Embeddings(z=z[:, : batch.MAX_IMAGES]))
    assert batch.embedding_statistics(Embeddings(z=z)) == few
