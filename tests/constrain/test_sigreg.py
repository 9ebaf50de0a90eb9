import pytest
import torch

import reference
from glf.constrain.sigreg import SIGReg, epps_pulley
from glf.methods import METHODS, parse
from glf.types import Embeddings
from reference import draw, draw_fields


@pytest.mark.parametrize("shape", [(1, 1), (5, 3)], ids=str)
def test_epps_pulley(shape):
    reference.check(epps_pulley, reference.epps_pulley, draw(*shape) + 0.3)


def test_a_gaussian_costs_less_than_other_distributions():
    """Of 4,000 samples: a point, another scale, another mean, two clusters."""
    x = draw(4000, 1)
    assert epps_pulley(x) < 2
    for other in (torch.zeros_like(x), 2 * x, x + 1, x.sign()):
        assert epps_pulley(other) > 200


def test_the_mean_over_views_along_unit_directions():
    z, term = draw(3, 6, 4), SIGReg(slices=5)
    directions = SIGReg(slices=5).directions(z)
    torch.testing.assert_close(directions.norm(dim=0), torch.ones(5, dtype=z.dtype))
    expected = reference.mean(reference.epps_pulley(view @ directions) for view in z)
    torch.testing.assert_close(term(Embeddings(z=z)), expected, rtol=1e-10, atol=0)


def test_directions_are_equal_everywhere_and_new_at_every_step():
    a, b, e = SIGReg(), SIGReg(), Embeddings(z=draw(2, 16, 3))
    first, second = a(e), a(e)
    assert first != second
    assert b(e) == first
    with torch.no_grad():
        assert a(e) == a(e)  # without gradients the count of draws stays


@pytest.mark.parametrize("method", ["align", "wmse", "corinfomax"])
def test_as_an_added_constraint_it_reads_z_before_any_transform(method):
    e = Embeddings(z=draw_fields(batch=12, dim=4)["z"])
    options = {"size": 6} if method == "wmse" else {}
    found = parse(f"{method}+sigreg").build(**options)(e).constrain["sigreg"]
    torch.testing.assert_close(found, METHODS[method].scale * 0.05 * SIGReg()(e))
