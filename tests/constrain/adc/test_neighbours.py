import math
from functools import partial

import pytest
import torch

import reference
from glf.constrain.adc.kernels import log_gaussian, squared_distances
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy, normalise_over_all, normalise_over_others
from glf.types import Embeddings
from reference import KINDS, draw

OF_A_MATRIX = {
    "normalise_over_others": (normalise_over_others, reference.log_distributions),
    "normalise_over_all": (normalise_over_all, partial(reference.log_distributions, with_anchor=True)),
    "entropy": (entropy, reference.entropy),
}


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("name", OF_A_MATRIX)
def test_functions_of_a_matrix(name, n):
    function, loops = OF_A_MATRIX[name]
    matrix = draw(n, n, seed=n).abs()
    reference.check(function, loops, -matrix if name == "entropy" else matrix)


def test_views_do_not_mix():
    views = draw(3, 4, 4)
    expected = torch.stack([normalise_over_others(view) for view in views])
    torch.testing.assert_close(normalise_over_others(views), expected, rtol=1e-12, atol=1e-12)


def test_distributions_sum_to_one_and_printed_ones_to_less():
    kernel = log_gaussian(squared_distances(draw(2, 7, 3)))
    total = normalise_over_others(kernel).exp().sum(-1)
    printed = normalise_over_all(kernel).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-12, atol=0)
    assert (printed < 1 - 1e-3).all()


def test_the_entropy_of_a_uniform_distribution_is_the_logarithm_of_its_size():
    h = entropy(normalise_over_others(torch.zeros(9, 9)))
    torch.testing.assert_close(h, torch.full((9,), math.log(8)))


@pytest.mark.parametrize(("reading", "covariance"), KINDS, ids=str)
def test_all_three_are_distributions_unless_printed(reading, covariance):
    neighbours = NeighbourDistributions(reading=reading, covariance=covariance)
    e = Embeddings(z=draw(2, 9, 4).requires_grad_(), prior=draw(9, 5, seed=1))
    for log_p in (neighbours.log_cal(e), neighbours.log_dat(e), neighbours.log_pre(e)):
        total = log_p.exp().sum(-1)
        if reading == "calibrated":
            torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-12, atol=0)
        else:
            assert (total < 0.99).all()
    assert neighbours.log_dat(e).requires_grad
    assert not neighbours.log_cal(e).requires_grad
    assert not neighbours.log_pre(e).requires_grad
