from itertools import combinations

import pytest
import torch

import reference
from glf.constrain.moments import (
    Covariance,
    Redundancy,
    SecondMoment,
    Standardise,
    Variance,
    covariance,
    redundancy,
    second_moment,
    standardise,
    variance,
)
from glf.types import Embeddings
from reference import draw


def unequal(*shape: int) -> torch.Tensor:
    """Samples with standard deviations from well below to well above VICReg's floor of 1."""
    return draw(*shape) * torch.linspace(0.2, 3, shape[-1], dtype=torch.float64) + 0.7


OF_ONE_VIEW = {
    "variance": (variance, reference.variance),
    "covariance": (covariance, reference.covariance),
    "standardise": (standardise, reference.standardise),
}


@pytest.mark.parametrize("shape", [(2, 1), (3, 4), (8, 5)], ids=str)
@pytest.mark.parametrize("name", OF_ONE_VIEW)
def test_functions_of_one_view(name, shape):
    reference.check(*OF_ONE_VIEW[name], unequal(*shape))


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_redundancy(dim):
    reference.check(redundancy, reference.redundancy, draw(dim, dim))


def redundancy_of_pairs(z):
    pairs = [reference.cross_correlation(x, y) for x, y in combinations(z, 2)]
    return reference.mean(reference.redundancy(c) for c in pairs)


TERMS = {
    "variance": (Variance(floor=9.0), lambda z: reference.mean(reference.variance(x, 9.0) for x in z)),
    "covariance": (Covariance(), lambda z: reference.mean(reference.covariance(x) for x in z)),
    "redundancy": (Redundancy(), redundancy_of_pairs),
}


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("name", TERMS)
def test_terms_average_over_views(name, views):
    term, loops = TERMS[name]
    (gradient,) = reference.same(lambda z: term(Embeddings(z=z)), loops, unequal(views, 6, 3))
    assert (gradient.abs() > 0).all()


def test_variance_is_zero_above_the_floor():
    z = (10 * draw(2, 8, 3)).requires_grad_()
    value = Variance()(Embeddings(z=z))
    value.backward()
    assert value == 0
    assert not z.grad.any()


def test_standardise_changes_z_only():
    e = Embeddings(z=unequal(2, 6, 3), prior=draw(6, 2))
    transformed = Standardise()(e)
    expected = torch.stack([reference.standardise(view) for view in e.z])
    torch.testing.assert_close(transformed.z, expected, rtol=1e-10, atol=1e-12)
    assert transformed.prior is e.prior
    torch.testing.assert_close(transformed.z.mean(1), torch.zeros(2, 3).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("function", [variance, covariance, lambda z: standardise(z).square().sum()])
def test_zero_variance_is_finite(function):
    z = torch.ones(5, 3, requires_grad=True)
    value = function(z)
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()


def test_second_moment():
    moments = draw(3, 3, seed=1)

    def loops(z):
        return reference.mean(reference.dot(x, [reference.dot(row, x) for row in moments]) for x in z)

    reference.check(lambda z: second_moment(z, moments), loops, draw(5, 3))


def test_the_second_moments_of_each_view_run_without_gradient():
    """The second of two steps sees old times the first's moments; the gradient takes them as constants."""
    term, (first, second) = SecondMoment(old=0.75), draw(2, 2, 6, 3)
    term(Embeddings(z=first))
    held = [0.75 * 0.25 * x.T @ x / 6 + 0.25 * y.T @ y / 6 for x, y in zip(first, second, strict=True)]
    leaf = second.clone().requires_grad_()
    value = term(Embeddings(z=leaf))
    (gradient,) = torch.autograd.grad(value, leaf)
    torch.testing.assert_close(
        value.detach(), torch.stack([second_moment(*pair) for pair in zip(second, held, strict=True)]).mean()
    )
    expected = torch.stack([z @ (c + c.T) for z, c in zip(second, held, strict=True)]) / 12
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(term.memory.moments, torch.stack(held))
