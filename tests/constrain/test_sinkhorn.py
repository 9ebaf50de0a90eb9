import pytest
import torch

import reference
from glf.constrain.sinkhorn import Codes, sinkhorn
from glf.types import Embeddings
from reference import draw, draw_fields


@pytest.mark.parametrize("rounds", [1, 3])
def test_sinkhorn(rounds):
    scores = draw(5, 3)
    expected = reference.table(reference.sinkhorn(scores, 0.3, rounds))
    torch.testing.assert_close(sinkhorn(scores, 0.3, rounds), expected, rtol=1e-12, atol=1e-14)


def test_every_prototype_gets_the_same_share_after_many_rounds():
    codes = sinkhorn(draw(12, 4), 0.5, rounds=200)
    torch.testing.assert_close(codes.sum(1), torch.ones(12, dtype=codes.dtype))
    torch.testing.assert_close(codes.sum(0), torch.full((4,), 3.0, dtype=codes.dtype))


def test_nothing_overflows():
    assert sinkhorn(1e3 * draw(6, 3).float(), 0.01).isfinite().all()


def test_codes_of_the_full_views_without_gradient():
    fields = draw_fields(views=4)
    e = Codes(full=2)(Embeddings(z=fields["z"].requires_grad_(), prototypes=fields["prototypes"].requires_grad_()))
    assert e.codes.shape == (2, 6, 5)
    assert not e.codes.requires_grad


def test_a_queue_shares_the_mass_from_its_epoch_on():
    fields, transform = draw_fields(), Codes(queue=12, queue_epoch=2)
    plain = Codes()
    e = Embeddings(z=fields["z"].requires_grad_(), prototypes=fields["prototypes"])
    torch.testing.assert_close(transform(e).codes, plain(e).codes)
    transform.epoch = 2.0
    assert not torch.allclose(transform(e).codes, plain(e).codes)
    assert transform.memory.keys.shape == (2, 12, 4)
