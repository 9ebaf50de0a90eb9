import pytest
import torch

import reference
from glf.constrain.whiten import Whiten, whiten
from glf.nn.memory import covariance_of
from glf.types import Embeddings
from reference import draw


def test_whiten():
    reference.check(whiten, reference.whiten, draw(7, 3) + 2)


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match="3 dimensions needs more than 3 images, not 3"):
        whiten(draw(3, 3))


def test_each_part_has_identity_covariance():
    z = draw(2, 12, 3)
    transform = Whiten(size=6)
    parts = torch.randperm(12, generator=Whiten(size=6).draws.generator()).tensor_split(2)
    whitened = transform(Embeddings(z=z)).z
    assert whitened.shape == z.shape
    for view in range(2):
        for part in parts:
            torch.testing.assert_close(covariance_of(whitened[view][part]), torch.eye(3, dtype=z.dtype))
            torch.testing.assert_close(whitened[view][part], whiten(z[view][part]))


def test_rounds_are_concatenated_and_differ():
    whitened = Whiten(size=6, rounds=3)(Embeddings(z=draw(2, 12, 3))).z
    assert whitened.shape == (2, 36, 3)
    a, b, _ = whitened[0].chunk(3)
    assert not torch.allclose(a, b)


def test_parts_are_drawn_at_every_step_and_continue_after_a_checkpoint():
    e = Embeddings(z=draw(2, 12, 3).requires_grad_())
    transform, fresh = Whiten(size=6), Whiten(size=6)
    first, second = transform(e).z, transform(e).z
    assert not torch.allclose(first, second)
    fresh.load_state_dict(transform.state_dict())
    torch.testing.assert_close(fresh(e).z, transform(e).z, rtol=0, atol=0)


def test_no_round_is_refused():
    with pytest.raises(ValueError, match="at least one round, not 0"):
        Whiten(rounds=0)
