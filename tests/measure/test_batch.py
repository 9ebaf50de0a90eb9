"""The shape of a batch: loops in float64 over quadruples and pairs, and what few samples of a known cloud give."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from glf.measure import batch
from glf.measure.geometry import effective_rank, full_rank
from glf.measure.geometry import spread as rounded_spread
from glf.types import Embeddings


def draw(seed: int, n: int, scales: Tensor) -> Tensor:
    """Skewed samples of a known covariance, diag(scales^2), about a mean that is not zero."""
    generator = torch.Generator().manual_seed(seed)
    noise = -torch.log(torch.rand(n, len(scales), generator=generator, dtype=torch.float64)) - 1  # variance 1
    return 3 + noise * scales


def test_both_traces_are_means_over_quadruples() -> None:
    """tr C^2 and (tr C)^2 are expectations over four distinct samples: here every quadruple, one by one."""
    x = draw(0, 6, torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64))
    of_square, squared = 0.0, 0.0
    quadruples = list(permutations(range(6), 4))
    for i, j, k, m in quadruples:
        a, b = x[i] - x[j], x[k] - x[m]
        of_square += float(a @ b) ** 2 / 4 / len(quadruples)
        squared += float((a @ a) * (b @ b)) / 4 / len(quadruples)
    found = float(batch.participation(batch.centred_gram(x), width=1000))  # no bound in the way
    assert found == pytest.approx(squared / of_square, rel=1e-10)


def test_few_samples_of_a_wide_cloud_show_its_rank_and_not_their_number() -> None:
    scales = torch.cat((torch.ones(64), torch.zeros(64))).double()  # 64 directions of 128
    found = [float(batch.participation(batch.centred_gram(draw(seed, 16, scales)), 128)) for seed in range(40)]
    assert sum(found) / 40 == pytest.approx(64, rel=0.1)
    naive = [effective_rank(draw(seed, 16, scales)) for seed in range(5)]
    assert max(naive) <= 15, "the samples' own spectrum cannot show more than their number less one"


def test_participation_of_simple_clouds() -> None:
    line = torch.arange(8.0).double()[:, None] * torch.tensor([1.0, 2.0, 3.0])
    assert float(batch.participation(batch.centred_gram(line), 3)) == pytest.approx(1.0)
    assert float(batch.participation(batch.centred_gram(torch.ones(8, 3)), 3)) == 0.0
    wide = draw(3, 4, torch.ones(200).double())
    assert float(batch.participation(batch.centred_gram(wide), 200)) <= 200 + 1e-9


@pytest.mark.parametrize(("n", "d"), [(40, 200), (200, 40), (101, 100)])
def test_full_rank_is_what_an_even_cloud_has(n: int, d: int) -> None:
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
    assert 0 < twins < 1, "a case that tells"
    assert 0 < between < 1
    assert [float(value) for value in found] == pytest.approx([twins, between])


def test_a_line_is_no_set_of_points() -> None:
    x = torch.rand(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    twins, between = (float(value) for value in batch.clumping(batch.centred_gram(x)))
    assert twins == 1.0
    assert between == pytest.approx(0.29, abs=0.03)  # of pairs at 0.041 to 0.204 of the length: 0.366 - 0.080


def test_prototypes_used_against_a_count() -> None:
    generator = torch.Generator().manual_seed(2)
    z, prototypes = torch.randn(30, 4, generator=generator), torch.randn(12, 4, generator=generator)
    nearest = {max(range(12), key=lambda k: float(torch.cosine_similarity(row, prototypes[k], dim=0))) for row in z}
    assert float(batch.prototypes_used(z, prototypes)) == pytest.approx(len(nearest) / (12 * (1 - (11 / 12) ** 30)))


def test_the_shape_of_embeddings() -> None:
    z = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = batch.shape(Embeddings(z=z))
    assert set(found) == {"z/scale", "z/spread", "z/rank", "z/twins", "z/between"}
    assert not any(value.requires_grad for value in found.values())
    assert float(found["z/scale"]) == pytest.approx(float(z[0].pow(2).mean().sqrt()))
    assert float(found["z/spread"]) == pytest.approx(rounded_spread(z[0].detach()), abs=1e-4)
    assert "prototypes/used" in batch.shape(Embeddings(z=z, prototypes=torch.eye(8)))
    assert "z/rank" not in batch.shape(Embeddings(z=z[:, :3])), "three samples cannot tell"


def test_the_cost_is_bounded_however_large_the_batch() -> None:
    z = torch.randn(1, 5_000, 2, generator=torch.Generator().manual_seed(0))
    few = batch.shape(Embeddings(z=z[:, : batch.IMAGES]))
    assert batch.shape(Embeddings(z=z)) == few
