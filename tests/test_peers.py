"""Our losses against lightly's: values and gradients, or a statement of the difference."""

import pytest
import torch
from lightly.loss import (
    BarlowTwinsLoss,
    DINOLoss,
    NegativeCosineSimilarity,
    NTXentLoss,
    SwaVLoss,
    TiCoLoss,
    VICRegLLoss,
    VICRegLoss,
)
from lightly.loss.emp_ssl_loss import EMPSSLLoss, invariance_loss, tcr_loss
from lightly.loss.lejepa_loss import LeJEPALoss, SIGReg
from lightly.loss.wmse_loss import WMSELoss
from lightly.models.modules import NNMemoryBankModule
from torch.nn import functional as F

from glf.constrain import sigreg
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


def scores_of(views, prototypes):
    return [F.normalize(x, dim=1) @ F.normalize(prototypes, dim=1).T for x in views]


def dino(z, teacher, prototypes, teacher_prototypes):
    """lightly leaves the stop-gradient on the teacher to its caller. Its temperatures are in float32: 1/32 is exact."""
    held = scores_of(teacher.detach(), teacher_prototypes.detach())
    return DINOLoss(len(prototypes), teacher_temp=1 / 32)(held, scores_of(z, prototypes))


def nnclr(z, p):
    """lightly's bank begins with other random entries, so it gets ours; here both directions ask before it changes."""
    bank = NNMemoryBankModule((32, z.shape[2]))
    bank.bank = F.normalize(Queue(32)(z[:1])[0], dim=1)
    near, criterion = [bank(x.detach()) for x in z], NTXentLoss(temperature=0.1)
    return (criterion(near[0], p[1]) + criterion(near[1], p[0])) / 2


def sigreg_of_lightly(z, slices):
    """lightly's SIGReg with our directions; its Gaussian window is in float32, whatever the input."""
    peer = SIGReg(num_vectors=slices).to(z.dtype)
    peer.phi = (-peer.t.square() / 2).exp()
    steps = torch.full_like(peer.t, 2 * 3 / 16).index_fill(0, torch.tensor([0, 16]), 3 / 16)
    torch.testing.assert_close((steps * peer.phi).float(), peer.weights.float())
    peer.weights = steps * peer.phi
    peer._generate_unit_vectors = lambda *_: sigreg.SIGReg(slices).directions(z)
    return peer


def lejepa(z):
    """With as many global views as there are views; LeJEPALoss wants at least one local view."""
    loss = LeJEPALoss(sigreg_num_vectors=32)
    loss.sigreg = sigreg_of_lightly(z, 32)
    of_all = loss.sigreg(z)
    return loss.lambda_param * of_all + (1 - loss.lambda_param) * (z.mean(0) - z).square().mean()


def emp(z):
    """The sum of lightly's parts with the sign of the paper: the coding rate is maximised."""
    u = F.normalize(z, dim=2)
    return 200 * invariance_loss(u) - tcr_loss(u, eps=0.2)


def tico(z, teacher):
    """lightly has one direction; a loss of its own for each, because it keeps one running covariance."""
    return (TiCoLoss()(z[0], teacher[1].detach()) + TiCoLoss()(z[1], teacher[0].detach())) / 2


def diet(z, instance_scores, instance):
    """PyTorch's own label smoothing: lightly has no DIET."""
    return F.cross_entropy(instance_scores.flatten(0, 1), instance.repeat(2), label_smoothing=0.8)


def vcreg(z, scores, target):
    """PyTorch's cross-entropy and lightly's parts of VICReg: lightly has no VCReg."""
    parts = VICRegLoss(lambda_param=0, mu_param=0.64, nu_param=0.08 / 2)(*z)  # it sums the covariance over views
    return F.cross_entropy(scores.flatten(0, 1), target.repeat(2)) + parts


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
    "dino": (dino, {"sharp": 1 / 32}),
    "nnclr": (nnclr, {"queue": 32, "within": 1}),
    "lejepa": (lejepa, {"slices": 32}),
    "emp": (emp, {}),
    "tico": (tico, {}),
    "diet": (diet, {}),
    "vcreg": (vcreg, {}),
}
NOT_LEARNT = ("boxes", "target", "instance")


def with_own_statistics() -> dict[str, torch.Tensor]:
    """A batch whose views differ in mean and in scale, as they do in training."""
    fields = draw_fields(batch=16, dim=8)
    fields["z"][1] = 2 * fields["z"][1] - 1
    return fields


# lightly's whitening is float32 only
CASES = [(name, dtype) for name in PEERS for dtype in (torch.float32, torch.float64)]
CASES.remove(("wmse", torch.float64))


def of_kind(x, dtype):
    return x.to(dtype) if x.is_floating_point() else x


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_equals_lightly(name, dtype):
    (peer, options), results = PEERS[name], []
    needs = parse(name).build(**options).needs

    def ours(**fields):
        return parse(name).build(**options)(Embeddings(**fields)).total

    for loss in (ours, peer):
        leaves = {
            key: x.to(dtype).requires_grad_() if key not in NOT_LEARNT else of_kind(x, dtype)
            for key, x in with_own_statistics().items()
            if key in needs
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


def steps_of(count):
    """Batches of successive steps, each with everything that a network produces."""
    return [draw_fields(batch=16, dim=8, seed=30 * step) for step in range(count)]


def assert_same_steps(ours, theirs, batches, *moving):
    """Equal values and gradients in every step."""
    for batch in batches:
        results = []
        for loss in (ours, theirs):
            leaves = {name: x.clone().requires_grad_(name in moving) for name, x in batch.items()}
            value = loss(leaves)
            value.backward()
            results.append([value, *(leaves[name].grad for name in moving)])
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_dinos_centre_follows_as_lightlys():
    """Four steps, in the later ones the centre differs from zero; the temperature rises over three epochs."""
    objective = parse("dino").build(sharp_start=1 / 32, sharp=1 / 16, warmup=3)
    peer = DINOLoss(5, warmup_teacher_temp=1 / 32, teacher_temp=1 / 16, warmup_teacher_temp_epochs=3).double()
    fractions, epochs = iter((0.5, 1.0, 2.9, 3.0)), iter(range(4))

    def ours(f):
        objective.set_epoch(next(fractions))
        given = {name: f[name] for name in objective.needs}
        return objective(Embeddings(**given)).total

    def theirs(f):
        held, student = scores_of(f["teacher"], f["teacher_prototypes"]), scores_of(f["z"], f["prototypes"])
        return peer(held, student, epoch=next(epochs))

    assert_same_steps(ours, theirs, steps_of(4), "z", "prototypes")
    torch.testing.assert_close(objective.transforms[0].memory.centre, peer.center.flatten(), rtol=1e-12, atol=1e-14)
    assert peer.center.abs().max() > 0.05


def test_dino_with_small_crops_equals_lightly():
    f = draw_fields(views=4)
    teacher = f["teacher"][:2]
    e = Embeddings(**{name: f[name] for name in ("z", "prototypes", "teacher_prototypes")}, teacher=teacher)
    expected = DINOLoss(5).double()(scores_of(teacher, f["teacher_prototypes"]), scores_of(f["z"], f["prototypes"]))
    torch.testing.assert_close(parse("dino").build()(e).total, expected, rtol=1e-7, atol=0)  # its 0.04 is in float32


def test_ticos_covariance_follows_as_lightlys():
    objective, peers = parse("tico").build(), (TiCoLoss(), TiCoLoss())

    def theirs(f):
        return sum(peer(f["z"][v], f["teacher"][1 - v]) for v, peer in enumerate(peers)) / 2

    ours = lambda f: objective(Embeddings(z=f["z"], teacher=f["teacher"])).total  # noqa: E731
    assert_same_steps(ours, theirs, steps_of(3), "z")
    expected = torch.stack([peer.C for peer in peers])
    torch.testing.assert_close(objective.constrain.parts[0][1].memory.moments, expected, rtol=1e-12, atol=1e-14)


def test_nnclrs_queue_follows_as_lightlys():
    """Of the first view; lightly's example keeps the second, so its views are swapped. Its bank is a ring."""
    batches = steps_of(3)
    objective, bank = parse("nnclr").build(queue=48, within=1), NNMemoryBankModule((48, 8))
    bank.bank = F.normalize(Queue(48)(batches[0]["z"][:1])[0], dim=1).flip(0)  # so the same entries are dropped first
    criterion = NTXentLoss(temperature=0.1)

    def theirs(f):
        near1 = bank(F.normalize(f["z"][1], dim=1), update=False)
        near0 = bank(F.normalize(f["z"][0], dim=1), update=True)
        return (criterion(near0, f["p"][1]) + criterion(near1, f["p"][0])) / 2

    assert_same_steps(lambda f: objective(Embeddings(z=f["z"], p=f["p"])).total, theirs, batches, "p")


def test_lightlys_nnclr_has_more_negatives_than_the_papers():
    f = with_own_statistics()
    e = Embeddings(z=f["z"], p=f["p"])
    paper, within = (float(parse("nnclr").build(queue=32, within=more)(e).total) for more in (0, 1))
    assert within > paper + 0.1


def test_lejepas_centre_is_that_of_the_global_views():
    z = draw_fields(views=4, batch=16, dim=8)["z"]
    peer = LeJEPALoss(sigreg_num_vectors=32)
    peer.sigreg = sigreg_of_lightly(z, 32)
    ours = lambda z: parse("lejepa").build(slices=32)(Embeddings(z=z, full=2)).total  # noqa: E731
    values, gradients = [], []
    for loss in (ours, lambda z: peer(local_proj=z[2:], global_proj=z[:2])):
        leaf = z.clone().requires_grad_()
        values.append(loss(leaf))
        gradients.append(torch.autograd.grad(values[-1], leaf)[0])
    torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
    assert abs(ours(z) - parse("lejepa").build(slices=32)(Embeddings(z=z)).total) > 1e-3


def test_lightlys_emp_ssl_minimises_the_coding_rate():
    """Its sign is opposite to the paper's and the authors': of two batches, it prefers the collapsed one."""
    spread, point = torch.eye(8).repeat(2, 1, 1), torch.eye(8)[:1].expand(2, 8, 8)
    ours, theirs = (
        [float(loss(z)) for z in (spread, point)]
        for loss in (lambda z: parse("emp").build()(Embeddings(z=z)).total, lambda z: EMPSSLLoss()(list(z)))
    )
    assert ours[0] < ours[1] - 1
    assert theirs[0] > theirs[1] + 1
