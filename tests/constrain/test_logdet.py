import pytest
import torch

import reference
from glf.constrain.logdet import CodingLength, coding_length, coding_rate, log_determinants
from glf.types import Embeddings
from reference import draw, draw_fields


def cosines(p, t):
    return reference.cosine(p, t)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)], ids=str)
@pytest.mark.parametrize("order", [2, 3, 4])
def test_coding_length(shape, order):
    t = draw(*shape, seed=1)

    def loops(p):
        both = torch.stack((p, p)), torch.stack((t, t))
        return reference.mec(*both, 2.0, order) - cosines(p, t)

    reference.check(lambda p: coding_length(p, t, 2.0, order), loops, draw(*shape))


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)], ids=str)
def test_the_series_converges_to_the_determinant(shape):
    p, t = draw(*shape), draw(*shape, seed=1)
    exact, series = (coding_length(p, t, 8.0, order) for order in (0, 60))
    torch.testing.assert_close(series, exact, rtol=1e-9, atol=1e-12)
    assert torch.autograd.gradcheck(lambda p: coding_length(p, t, 8.0, 0), p.clone().requires_grad_())


def test_a_determinant_that_is_not_positive_is_refused():
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"undefined: det.*larger distortion"):
        coding_length(p, torch.stack((-p[0], p[1])), distortion=0.5, order=0)


def test_the_warm_up_starts_with_a_larger_distortion():
    fields = draw_fields()
    e = Embeddings(z=fields["z"], p=fields["p"], teacher=fields["teacher"])
    term = CodingLength(4.0, 4, warmup_epochs=10)
    values = []
    for epoch in (0.0, 5.0, 10.0, 20.0):
        term.epoch = epoch
        values.append(float(term(e)))
    expected = [
        float(reference.mec(e.p, e.teacher, 4.0, 4, slack) - reference.mec(e.p, e.teacher, 4.0, 1, slack))
        for slack in (8.0, 4.5, 1.0, 1.0)
    ]
    assert values == pytest.approx(expected)


def test_log_determinants():
    a = draw(2, 3, 3)
    positive = lambda a: a @ a.transpose(1, 2) + torch.eye(3, dtype=a.dtype)  # noqa: E731
    loops = lambda a: -sum(torch.logdet(m + 1e-8 * torch.eye(3, dtype=a.dtype)) for m in positive(a)) / 3  # noqa: E731
    reference.check(lambda a: log_determinants(positive(a)), loops, a)


def test_more_views_add_no_weight():
    covariance = torch.eye(3, dtype=torch.float64)[None] / 2
    two, four = (log_determinants(covariance.repeat(views, 1, 1)) for views in (2, 4))
    torch.testing.assert_close(two, four)


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 5)], ids=str)
def test_coding_rate(shape):
    """With more images than dimensions, and with fewer, where the smaller matrix is of images."""
    reference.check(lambda z: coding_rate(z, 0.2), lambda z: reference.coding_rate(z, 0.2), draw(*shape))


def test_the_coding_rate_is_largest_for_orthogonal_directions():
    spread, line = torch.eye(4), torch.tensor([[1.0, 0, 0, 0]]).repeat(4, 1)
    assert coding_rate(spread) < coding_rate(line) - 1
