"""The same losses as lightly's, values and gradients, or the difference stated."""

import pytest
import torch
from lightly.loss import BarlowTwinsLoss, NegativeCosineSimilarity, NTXentLoss, VICRegLoss
from torch.nn import functional as F

from glf.methods import parse
from glf.types import Embeddings
from reference import draw_fields

negative_cosine = NegativeCosineSimilarity()


def simsiam(z, p, teacher):
    return (negative_cosine(p[0], z[1].detach()) + negative_cosine(p[1], z[0].detach())) / 2


def byol(z, p, teacher):
    """2 - 2 cos is 2 + 2 times the negative cosine, and there are two directions."""
    return 4 + 2 * (negative_cosine(p[0], teacher[1].detach()) + negative_cosine(p[1], teacher[0].detach()))


def barlow_twins(z, p, teacher):
    """As ours, lightly standardises each branch by its own statistics; its default weight is 0.005, not 0.0051."""
    return BarlowTwinsLoss(lambda_param=0.0051)(z[0], z[1])


PEERS = {
    "simclr": lambda z, p, teacher: NTXentLoss(temperature=0.2)(z[0], z[1]),
    "vicreg": lambda z, p, teacher: VICRegLoss()(z[0], z[1]),
    "simsiam": simsiam,
    "byol": byol,
    "barlow_twins": barlow_twins,
}


def with_own_statistics() -> dict[str, torch.Tensor]:
    """A batch whose views differ in mean and in scale, as they do in training."""
    fields = draw_fields(batch=16, dim=8)
    fields["z"][1] = 2 * fields["z"][1] - 1
    return {name: fields[name] for name in ("z", "p", "teacher")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PEERS)
def test_equals_lightly(name, dtype):
    objective, results = parse(name).build(), []
    for loss in (lambda **fields: objective(Embeddings(**fields)).total, PEERS[name]):
        leaves = {key: x.to(dtype).requires_grad_() for key, x in with_own_statistics().items()}
        value = loss(**leaves)
        value.backward()
        results.append([value, *(x.grad for x in leaves.values() if x.grad is not None)])
    assert len(results[0]) == 2
    tolerance = 1e-6 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


def test_barlow_twins_with_pooled_statistics_would_be_another_loss():
    """Standardising both views at once agrees only where their statistics do."""

    def pooled(z):
        both = F.batch_norm(z.flatten(0, 1), None, None, training=True).view_as(z)
        c = both[0].T @ both[1] / z.shape[1]
        return (1 - c.diagonal()).square().sum() + 0.0051 * (c - c.diagonal().diag()).square().sum()

    objective, z = parse("barlow_twins").build(), with_own_statistics()["z"]
    own = torch.stack([F.batch_norm(view, None, None, training=True) for view in z])
    assert (objective(Embeddings(z=z)).total - pooled(z)).abs() > 0.1
    torch.testing.assert_close(objective(Embeddings(z=own)).total, pooled(own), rtol=1e-6, atol=0)
