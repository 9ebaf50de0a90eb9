"""Targets of DCM against their loops, and what is known about them."""

import copy
import math
from functools import partial

import pytest
import torch

import reference
from glf.config.adc import AdcOptions
from glf.constrain.adc import ADC, DCM, LPM, dcm, outlier_weight
from glf.constrain.adc.blockwise import Given, Rows, StudentKernel, divergences
from glf.constrain.adc.kernels import NO_NEIGHBOUR, bandwidths, log_gaussian, log_student
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.methods import parse
from glf.nn.memory import CleanMemory
from glf.types import Embeddings
from reference import draw

IN_BATCH = ("clean", "centre", "prior")
FIELDS = {"z": draw(2, 6, 4), "prior": draw(6, 3, seed=1), "clean": draw(6, 4, seed=2)}


def batch(n: int = 6, seed: int = 0, first: int = 0) -> Embeddings:
    z, clean, prior = draw(2, n, 4, seed=seed), draw(n, 4, seed=seed + 1), draw(n, 3, seed=seed + 2)
    return Embeddings(z=z, clean=clean, prior=prior, indices=torch.arange(first, first + n))


# --- bandwidths


@pytest.mark.parametrize("perplexity", [1.5, 3.0, 7.0])
@pytest.mark.parametrize(
    "log_kernel", [log_gaussian, partial(log_student, rho=5.0, dim=16.0)], ids=["gaussian", "student"]
)
def test_bandwidths_give_the_perplexity_and_equal_their_loops(perplexity, log_kernel):
    distances = draw(5, 9).pow(2) * torch.tensor([1e-4, 1.0, 1e4, 3.0, 0.1]).unsqueeze(1)
    found = bandwidths(distances, log_kernel, perplexity)
    log_p = log_kernel(found.unsqueeze(1) * distances).log_softmax(-1)
    torch.testing.assert_close(entropy(log_p).exp(), torch.full((5,), perplexity).double(), rtol=1e-5, atol=0)
    loops = torch.tensor([reference.bandwidth(row, log_kernel, perplexity) for row in distances]).double()
    torch.testing.assert_close(found, loops, rtol=1e-5, atol=0)


def test_bandwidths_of_float32_and_of_entries_that_do_not_count():
    distances = draw(4, 9).pow(2)
    ignored = torch.cat((distances, torch.full((4, 3), NO_NEIGHBOUR)), 1)
    torch.testing.assert_close(bandwidths(ignored, log_gaussian, 4.0), bandwidths(distances, log_gaussian, 4.0))
    single = bandwidths(ignored.float(), log_gaussian, 4.0)
    torch.testing.assert_close(single.double(), bandwidths(distances, log_gaussian, 4.0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_cannot_have_the_perplexity_are_finite(dtype):
    few, copies, far = torch.ones(2, 3), torch.zeros(2, 9), torch.full((2, 9), 1e20)
    for distances in (few, copies, far):
        found = bandwidths(distances.to(dtype), log_gaussian, 5.0)
        assert found.isfinite().all()
        assert log_gaussian(found.unsqueeze(1) * distances).log_softmax(-1).isfinite().all()


# --- the terms against their loops


@pytest.mark.parametrize("prior_perplexity", [None, 2.5])
@pytest.mark.parametrize("target", IN_BATCH)
def test_terms_equal_their_loops(target, prior_perplexity):
    settings = {"target": target, "perplexity": 3.0, "prior_power": 0.7, "prior_perplexity": prior_perplexity}
    loops = reference.Adc(**settings)
    plain = DCM(neighbours=NeighbourDistributions(**settings))
    pairs = [
        (plain, lambda z, prior, clean: loops.dcm(z, prior, clean, weighted=False)),
        (ADC(nu=0.7, upsilon=0.2, **settings), partial(loops.adc, nu=0.7, upsilon=0.2)),
    ]
    for term, loop in pairs:

        def ours(z, prior, clean, term=term):
            return term(Embeddings(z=z, prior=prior, clean=clean))

        z, prior, clean = reference.same_up_to(1e-5, ours, loop, *FIELDS.values())
        assert (z.abs() > 0).all()
        assert not prior.any()
        assert not clean.any()


def test_lpm_with_bandwidths_of_the_prior_equals_its_loops():
    term = LPM(neighbours=NeighbourDistributions(prior_perplexity=2.5))
    loops = reference.Adc(prior_perplexity=2.5)
    reference.same_up_to(
        1e-5, lambda z, prior: term(Embeddings(z=z, prior=prior)), loops.lpm, FIELDS["z"], FIELDS["prior"]
    )
    assert entropy(term.neighbours.log_pre(batch())).exp().sub(2.5).abs().max() < 1e-4


def test_memory_equals_its_loops_over_several_steps():
    """The memory of 9 holds two batches of 4 and the newest of a third; an image seen again counts once."""
    term = DCM(neighbours=NeighbourDistributions(target="memory", memory_size=9, perplexity=3.0))
    loops, entries = reference.Adc(perplexity=3.0), []
    for step, first in enumerate((0, 4, 8, 6)):
        e = batch(4, seed=10 * step, first=first)
        new = [(int(i), reference.unit(u)) for i, u in zip(e.indices, e.clean, strict=True)]
        entries = (new + [(-1 if i in e.indices.tolist() else i, u) for i, u in entries])[:9]
        counted = [(i, u) for i, u in entries if i >= 0]

        def ours(z, term=term, e=e):
            return copy.deepcopy(term)(Embeddings(z=z, clean=e.clean, indices=e.indices))

        loop = partial(loops.over_memory, clean=e.clean, indices=e.indices, entries=counted)
        (gradient,) = reference.same_up_to(1e-5, ours, loop, e.z)
        assert gradient.any()
        term(e)  # remembers the batch


@pytest.mark.parametrize("target", [*IN_BATCH, "memory"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradcheck(target, weighted):
    neighbours = NeighbourDistributions(target=target, perplexity=3.0, memory_size=8)
    term, held = DCM(weighted=weighted, neighbours=neighbours).eval(), batch()
    cal, weight = neighbours.log_cal(held), outlier_weight(entropy(neighbours.log_pre(held)))

    def loss(z):
        e = Embeddings(z=z, clean=held.clean, prior=held.prior, indices=held.indices)
        if target == "prior":  # whose target moves with z, without gradient: finite differences need it fixed
            return dcm(cal, neighbours.log_dat(e), weight if weighted else None)
        return term(e)

    assert torch.autograd.gradcheck(loss, held.z.clone().requires_grad_())


@pytest.mark.parametrize("block", [1, 4, 99])
@pytest.mark.parametrize("power", [0.0, 0.5])
def test_blocks_do_not_change_the_numbers(block, power):
    y, prior, u = draw(2, 7, 5).requires_grad_(), draw(7, 3, seed=1), draw(7, 4, seed=2)
    kernel, s, r = StudentKernel(6.5, 0.12), draw(7, seed=3).exp(), draw(7, seed=4).exp()
    rows = None if power else Rows(u, StudentKernel(1.0, 0.3), s)
    given = Given(kernel, Rows(prior, StudentKernel(7.0, 0.2), r), rows, power)
    found = divergences(y, given, entropies=True, block_size=block)

    def squares(x):
        return (x.unsqueeze(-2) - x.unsqueeze(-3)).pow(2).sum(-1)

    def normalised(log_kernel):
        others = log_kernel[..., ~torch.eye(7, dtype=torch.bool)].reshape(*log_kernel.shape[:-1], 6)
        return others.log_softmax(-1)

    dat = normalised(-6.5 * torch.log1p(0.12 * squares(y)))
    log_pre = -7.0 * torch.log1p(0.2 * r.unsqueeze(1) * squares(prior))
    cal = (-squares(y) / 2 + power * log_pre) if power else (-s.unsqueeze(1) * squares(u) / 2).expand(2, -1, -1)
    cal, pre = normalised(cal).detach(), normalised(log_pre)
    wanted = (cal.exp() * (cal - dat)).sum(-1), -(pre.exp() * dat).sum(-1)
    for ours, theirs in zip(found, (*wanted, entropy(pre), entropy(cal), entropy(dat)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    weights = draw(2, 2, 7, seed=5)
    gradients = [
        torch.autograd.grad((weights * torch.stack(values[:2])).sum(), y, retain_graph=True)[0]
        for values in (found, wanted)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


# --- what is known about them


def test_own_is_the_default_and_unchanged():
    assert DCM().neighbours.target == "own"
    assert DCM().needs == {"z"}
    e = batch()
    torch.testing.assert_close(DCM(neighbours=NeighbourDistributions(target="own"))(e), DCM()(e), rtol=0, atol=0)


@pytest.mark.parametrize("target", ["clean", "centre", "memory"])
def test_a_target_of_clean_embeddings_has_the_perplexity(target):
    e = batch(40)
    neighbours = NeighbourDistributions(target=target, perplexity=10.0, memory_size=50)
    log_cal = neighbours.log_over_memory(e)[0] if target == "memory" else neighbours.log_cal(e)
    torch.testing.assert_close(entropy(log_cal).exp(), torch.full((2, 40), 10.0).double(), rtol=1e-4, atol=0)


def test_clean_asks_for_another_order_of_neighbours():
    """Unlike own, whose target is a monotone function of the distances that it moves."""
    e = batch(12)
    for target, same in (("own", True), ("clean", False)):
        n = NeighbourDistributions(target=target, perplexity=4.0)
        orders = [p.argsort(-1) for p in (n.log_cal(e), n.log_dat(e))]
        assert torch.equal(*orders) == same


def test_centres_are_nearer_to_each_other_within_a_cluster():
    u = torch.nn.functional.normalize(torch.cat((draw(8, 4) * 0.3 + 1, draw(8, 4, seed=1) * 0.3 - 1)), dim=-1)
    e = Embeddings(z=u.unsqueeze(0), clean=u)
    of = {t: NeighbourDistributions(target=t, perplexity=5.0)._target(e) for t in ("clean", "centre")}
    clean, centre = (torch.cdist(of[t].points[:8], of[t].points[:8]).mean() for t in ("clean", "centre"))
    assert centre < 0.7 * clean


def test_a_prior_power_of_zero_is_own():
    e = batch()
    own, none = DCM()(e), DCM(neighbours=NeighbourDistributions(target="prior", prior_power=0.0))(e)
    torch.testing.assert_close(own, none, rtol=1e-12, atol=0)


def test_a_memory_is_updated_in_training_only_and_survives_a_checkpoint():
    memory = CleanMemory(8)
    u, indices = draw(5, 3), torch.arange(5)
    with torch.no_grad():
        memory(u, indices)
    assert not (memory.indices >= 0).any()
    memory(u, indices)
    fresh = CleanMemory(8)
    fresh.load_state_dict(memory.state_dict())
    for ours, theirs in zip(fresh(u + 1, indices + 3), memory(u + 1, indices + 3), strict=True):
        assert torch.equal(ours, theirs)
    assert memory.indices.tolist() == [3, 4, 5, 6, 7, 0, 1, 2]


def test_what_each_target_needs():
    for target, needs in (("clean", {"clean"}), ("memory", {"clean", "indices"}), ("prior", {"prior"})):
        options = AdcOptions(target=target)
        assert parse("simclr+dcm", options).build().needs == {"z"} | needs
        assert parse("simclr+adc", options).build().needs == {"z", "prior"} | needs
        assert parse("simclr+lpm", options).build().needs == {"z", "prior"}
    with pytest.raises(ValueError, match="reads 'clean', which was not given: pass clean="):
        DCM(neighbours=NeighbourDistributions(target="clean"))(*draw(2, 6, 4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "clean", "reading": "paper"}, "reading='paper' has the target 'own'"),
        ({"prior_perplexity": 5.0, "reading": "paper"}, "reading='paper' has the target 'own'"),
        ({"target": "memory", "covariance": "batch"}, "'memory' needs the covariance 'sphere', not 'batch'"),
        ({"perplexity": 1.0}, "perplexity must be above 1"),
    ],
)
def test_mistakes(settings, message):
    with pytest.raises(ValueError, match=message):
        NeighbourDistributions(**settings)


def test_a_plain_loop_with_clean_embeddings():
    z0, z1, prior, clean = FIELDS["z"][0], FIELDS["z"][1], FIELDS["prior"], FIELDS["clean"]
    value = ADC(target="clean")(z0, z1, prior=prior, clean=clean)
    assert math.isfinite(value)
    assert value != ADC()(z0, z1, prior=prior)


# --- what the distributions know about classes


@pytest.mark.parametrize("target", ["own", "clean", "memory"])
def test_class_masses_equal_their_loops(target):
    labels = torch.tensor([0, 1, 2, 0, 1, -1, 0, 0, 1, 2, -1])
    term = DCM(neighbours=NeighbourDistributions(target=target, memory_size=9, perplexity=3.0))
    lpm = LPM(neighbours=term.neighbours)
    e = batch(5, seed=20, first=6)
    if target == "memory":
        term(batch(4, first=0))
        log_cal, log_dat, _ = term.neighbours.log_over_memory(e)
        entries = [[*range(6, 11), *range(4)] for _ in range(5)]
    else:
        log_cal, log_dat = term.neighbours.log_cal(e), term.neighbours.log_dat(e)
        entries = [[6 + j for j in range(5) if j != i] for i in range(5)]

    def mass(log_p, entries=entries):
        total = 0.0
        for view in log_p:
            for i, row in enumerate(view):
                for j, p in zip(entries[i], row, strict=True):
                    if labels[6 + i] == labels[j] and labels[j] >= 0:
                        total += float(p.exp())
        return total / len(log_p) / 5

    found = term.eval().class_masses(e, labels)
    assert float(found["cal"]) == pytest.approx(mass(log_cal))
    assert float(found["dat"]) == pytest.approx(mass(log_dat))
    others = [[6 + j for j in range(5) if j != i] for i in range(5)]
    of_prior = lpm.class_masses(e, labels)
    assert float(of_prior["pre"]) == pytest.approx(mass(lpm.neighbours.log_pre(e).unsqueeze(0), others))
    assert float(of_prior["dat"]) == pytest.approx(mass(lpm.neighbours.log_dat(e), others))


def test_the_class_mass_over_a_bank():
    labels = torch.tensor([0, 1, 0, 1, 1])
    term = LPM(at="bank")
    term.set_bank(draw(3, 3), torch.tensor([0, 2, 3]))
    e = Embeddings(z=draw(1, 2, 4), r=draw(1, 2, 3), prior=draw(2, 3, seed=1), indices=torch.tensor([0, 4]))
    log_dat, log_pre = term._over_bank(e)
    same = torch.tensor([[True, True, False], [False, False, True]])
    found = term.class_masses(e, labels)
    torch.testing.assert_close(found["dat"], (log_dat.exp() * same).sum(-1).mean())
    torch.testing.assert_close(found["pre"], (log_pre.exp() * same).sum(-1).mean())
