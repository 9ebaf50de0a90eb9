"""Our losses against lightly's: values and gradients, or a statement of the difference."""

import pytest
import torch
from lightly.loss import BarlowTwinsLoss, NegativeCosineSimilarity, NTXentLoss, SwaVLoss, VICRegLLoss, VICRegLoss
from lightly.loss.wmse_loss import WMSELoss
from torch.nn import functional as F

from glf.methods import parse
from glf.nn.memory import Queue
from glf.similarity import cell_centres
from glf.types import Embeddings
from reference import draw_fields

negative_cosine = NegativeCosineSimilarity()


def simsiam(z, p):
    return (negative_cosine(p[0], z[1].detach()) + negative_cosine(p[1], z[0].detach())) / 2


def byol(z, p, teacher):
    """2 - 2 cos is 2 + 2 times the negative cosine, and there are two directions."""
    return 4 + 2 * (negative_cosine(p[0], teacher[1].detach()) + negative_cosine(p[1], teacher[0].detach()))


def barlow_twins(z):
    """lightly also standardises each branch by its own statistics; its default weight is 0.005, not 0.0051."""
    return BarlowTwinsLoss(lambda_param=0.0051)(z[0], z[1])


def moco(z, teacher):
    """lightly's memory bank begins with other random entries, so it gets ours; one bank, so one view at a time."""
    losses = []
    for v, w in ((0, 1), (1, 0)):
        loss = NTXentLoss(temperature=0.2, memory_bank_size=(32, z.shape[2]))
        loss.memory_bank.bank = F.normalize(Queue(32)(teacher)[w], dim=1)
        losses.append(loss(z[v], F.normalize(teacher[w].detach(), dim=1)))
    return sum(losses) / 2


def swav(z, prototypes):
    scores = [F.normalize(x, dim=1) @ F.normalize(prototypes, dim=1).T for x in z]
    return SwaVLoss()(scores, [])[0]


def wmse(z):
    return WMSELoss(embedding_dim=z.shape[2], w_size=z.shape[1])(z.flatten(0, 1))


def vicregl(z, maps, boxes):
    grids = [cell_centres(box, maps.shape[2]).unflatten(1, (2, 2)) for box in boxes]
    cells = [cell.unflatten(1, (2, 2)) for cell in maps]
    return VICRegLLoss(num_matches=(3, 2))(list(zip(z, cells, strict=True)), grids)[0]


# lightly's loss, and the options with which ours is the same.
PEERS = {
    "simclr": (lambda z: NTXentLoss(temperature=0.2)(z[0], z[1]), {}),
    "moco": (moco, {"queue": 32}),
    "vicreg": (lambda z: VICRegLoss()(z[0], z[1]), {}),
    "simsiam": (simsiam, {}),
    "byol": (byol, {}),
    "barlow_twins": (barlow_twins, {}),
    "swav": (swav, {}),
    "wmse": (wmse, {}),
    "vicregl": (vicregl, {"first": 3, "second": 2}),
}


def with_own_statistics() -> dict[str, torch.Tensor]:
    """A batch whose views differ in mean and in scale, as they do in training."""
    fields = draw_fields(batch=16, dim=8)
    fields["z"][1] = 2 * fields["z"][1] - 1
    return fields


# lightly's whitening is float32 only
CASES = [(name, dtype) for name in PEERS for dtype in (torch.float32, torch.float64)]
CASES.remove(("wmse", torch.float64))


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_equals_lightly(name, dtype):
    (peer, options), results = PEERS[name], []
    needs = parse(name).build(**options).needs

    def ours(**fields):
        return parse(name).build(**options)(Embeddings(**fields)).total

    for loss in (ours, peer):
        leaves = {
            key: x.to(dtype).requires_grad_(key != "boxes") for key, x in with_own_statistics().items() if key in needs
        }
        value = loss(**leaves)
        value.backward()
        results.append([value, *(x.grad for x in leaves.values() if x.grad is not None)])
    assert len(results[0]) == len(results[1]) > 1
    tolerance = {torch.float32: 1e-5 if name in ("wmse", "moco", "swav") else 1e-6, torch.float64: 1e-10}[dtype]
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


def test_barlow_twins_with_pooled_statistics_is_a_different_loss():
    """Standardising both views together gives the same loss only if their statistics are equal."""

    def pooled(z):
        both = F.batch_norm(z.flatten(0, 1), None, None, training=True).view_as(z)
        c = both[0].T @ both[1] / z.shape[1]
        return (1 - c.diagonal()).square().sum() + 0.0051 * (c - c.diagonal().diag()).square().sum()

    objective, z = parse("barlow_twins").build(), with_own_statistics()["z"]
    own = torch.stack([F.batch_norm(view, None, None, training=True) for view in z])
    assert (objective(Embeddings(z=z)).total - pooled(z)).abs() > 0.1
    torch.testing.assert_close(objective(Embeddings(z=own)).total, pooled(own), rtol=1e-6, atol=0)
