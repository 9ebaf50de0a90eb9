import torch

from glf.constrain.metaug import UnifiedPartition, look_ahead_loss
from glf.methods import parse
from glf.types import Embeddings
from reference import draw, draw_fields


def test_generated_features_are_trained_by_the_look_ahead_loss():
    fields = draw_fields()
    z, generated = (fields[name].requires_grad_() for name in ("z", "generated"))
    value = UnifiedPartition(4.0, generated=True)(Embeddings(z=z, generated=generated))
    by_term = torch.autograd.grad(value, (z, generated), retain_graph=True)
    (meta,) = torch.autograd.grad(look_ahead_loss(z, generated, 4.0, 1.0), generated)
    torch.testing.assert_close(by_term[1], meta)
    assert meta.abs().max() > 1e-6
    small = 1e-6 * draw(*generated.shape, seed=3)
    difference = look_ahead_loss(z, generated + small, 4.0, 1.0) - look_ahead_loss(z, generated - small, 4.0, 1.0)
    torch.testing.assert_close(difference / 2, (meta * small).sum(), rtol=1e-4, atol=0)


def test_the_weight_of_the_generator_is_one_whatever_the_weight_of_its_features():
    """At the published weight of 1e-5 its gradient would be below the epsilon of the optimiser."""
    fields = draw_fields()
    generated = fields["generated"].requires_grad_()
    gradients = []
    for weight in (1e-5, 0.5):
        loss = parse("metaug").build(generated=weight)(Embeddings(z=fields["z"], generated=generated))
        gradients.append(torch.autograd.grad(loss.total, generated)[0])
    torch.testing.assert_close(*gradients)
    assert gradients[0].pow(2).mean().sqrt() > 1e-5
