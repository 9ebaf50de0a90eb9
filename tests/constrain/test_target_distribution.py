import pytest
import torch
from torch import Generator, Tensor

import reference
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS, MatchDistribution, dbscan, sliced_wasserstein
from glf.methods import METHODS, parse
from glf.nn.memory import covariance_of
from glf.types import Embeddings
from reference import draw, draw_fields


def seeded() -> Generator:
    return Generator().manual_seed(0)


def test_sliced_wasserstein():
    target, directions = draw(5, 3, seed=1), draw(3, 4, seed=2)
    ours = lambda z: sliced_wasserstein(z, target, directions)  # noqa: E731
    reference.check(ours, lambda z: reference.sliced_wasserstein(z, target, directions), draw(5, 3))


def test_samples_follow_their_target_distributions():
    z = draw(20_000, 3) @ torch.tensor([[2.0, 0, 0], [1, 1, 0], [0, 0, 0.5]], dtype=torch.float64) + 3
    some = z[:4_000]
    sphere, cube, gaussian, isotropic = (
        TARGET_DISTRIBUTIONS[name].sample(some, seeded()) for name in ("sphere", "cube", "gaussian", "isotropic")
    )
    torch.testing.assert_close(sphere.norm(dim=1), torch.ones(4_000, dtype=z.dtype))
    assert sphere.mean(0).abs().max() < 0.05
    assert cube.abs().max() <= 1
    torch.testing.assert_close(cube.var(0), torch.full((3,), 1 / 3, dtype=z.dtype), rtol=0.1, atol=0)
    for sample, covariance in ((gaussian, covariance_of(some)), (isotropic, torch.eye(3, dtype=z.dtype))):
        torch.testing.assert_close(sample.mean(0), some.mean(0), rtol=0, atol=0.15)
        torch.testing.assert_close(covariance_of(sample), covariance, rtol=0.1, atol=0.15)


def three_clusters(size: int) -> tuple[Tensor, Tensor]:
    """Elongated clusters of much less than unit variance, far from each other, and their centres."""
    centres = torch.tensor([[20.0, 0], [-20, 0], [0, 20]], dtype=torch.float64)
    inside = torch.rand(3 * size, 2, generator=seeded(), dtype=torch.float64) - 0.5
    return centres.repeat_interleave(size, 0) + inside * torch.tensor([0.5, 1.5]), centres


def test_the_mixture_is_isotropic_around_the_clusters():
    """Means and sizes are those of the clusters, the covariance is the identity whatever their own is."""
    z, centres = three_clusters(2000)
    assert len(dbscan(z).unique()) == 3
    sample = TARGET_DISTRIBUTIONS["mixture"].sample(z, seeded())
    nearest = torch.cdist(sample, centres).argmin(1)
    assert nearest.bincount().tolist() == [2000] * 3
    for one, centre in enumerate(centres):
        torch.testing.assert_close(sample[nearest == one].mean(0), centre, rtol=0, atol=0.1)
        torch.testing.assert_close(covariance_of(sample[nearest == one]), torch.eye(2, dtype=z.dtype), rtol=0, atol=0.1)


@pytest.mark.parametrize("outside", [0, 3])
def test_the_mixture_against_loops(outside):
    z = torch.cat((three_clusters(8)[0], 100 + 100 * draw(outside, 2)))
    assert (-1 in dbscan(z)) == bool(outside)
    generator, sizes = seeded(), dbscan(z).unique(return_counts=True)[1].tolist()
    drawn = torch.cat([torch.randn(size, 2, generator=generator).double() for size in sizes])
    ours = TARGET_DISTRIBUTIONS["mixture"].sample(z, seeded())
    torch.testing.assert_close(ours, reference.isotropic_mixture(z, drawn), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("target", TARGET_DISTRIBUTIONS)
def test_a_point_and_a_matching_batch(target):
    """A batch that follows the target costs little; a collapsed one costs more, unless a point matches the target."""
    term = MatchDistribution(target)
    batch = TARGET_DISTRIBUTIONS[target].sample(draw(256, 4), seeded()).unsqueeze(0)
    point = torch.full((1, 256, 4), 0.5, dtype=torch.float64)
    good, bad = (float(term(Embeddings(z=z))) for z in (batch, point))
    if target == "gaussian":
        assert bad == pytest.approx(0, abs=1e-9)  # a point is a Gaussian too
    else:
        assert good < 0.2 * bad


@pytest.mark.parametrize("target", TARGET_DISTRIBUTIONS)
def test_a_batch_that_does_not_match_has_a_gradient(target):
    z = (draw(2, 64, 3).exp()).requires_grad_()  # skewed, not centred, not of unit scale
    (gradient,) = torch.autograd.grad(MatchDistribution(target)(Embeddings(z=z)), z)
    assert gradient.abs().max() > 1e-5


def test_draws_are_equal_everywhere_and_new_at_every_step():
    a, b, e = MatchDistribution("sphere"), MatchDistribution("sphere"), Embeddings(z=draw(2, 16, 3))
    first, second = a(e), a(e)
    assert first != second
    assert b(e) == first
    with torch.no_grad():
        assert a(e) == a(e)  # without gradients the count of draws stays


@pytest.mark.parametrize("method", ["wmse", "barlow_twins", "corinfomax"])
def test_target_distributions_read_z_before_any_transform(method):
    """After a whitening or a normalisation a target would always, or never, be matched."""
    fields = draw_fields(batch=12, dim=4)
    e = Embeddings(**fields)
    options = {"size": 6} if method == "wmse" else {}
    found = parse(f"{method}+isotropic").build(**options)(e).constrain["isotropic"]
    alone = parse("align+isotropic").build()(e).constrain["isotropic"]
    torch.testing.assert_close(found, METHODS[method].scale * alone)


@pytest.mark.parametrize("dim", [8, 256])
@pytest.mark.parametrize(("target", "cost"), [("sphere", 2.0), ("cube", 1.0), ("isotropic", 1.0), ("mixture", 1.0)])
def test_a_point_costs_the_same_at_any_width(target, cost, dim):
    """In units of the target's variance, so that a weight means the same for a narrow and for a wide z."""
    z = 1e-3 * torch.nn.functional.normalize(draw(dim), dim=0).expand(2, 2000, dim)
    assert float(MatchDistribution(target, slices=512)(Embeddings(z=z))) == pytest.approx(cost, rel=0.1)
