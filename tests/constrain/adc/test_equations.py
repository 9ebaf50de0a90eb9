import math
from functools import partial

import pytest
import torch

import reference
from glf.align.distance import MSE
from glf.constrain.adc import ADC, DCM, LPM, dcm, lpm, outlier_weight
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.objective import Objective
from glf.types import Embeddings
from reference import KINDS, READINGS, draw

of_every_reading = pytest.mark.parametrize("reading", READINGS)
of_every_kind = pytest.mark.parametrize(("reading", "covariance"), KINDS, ids=str)


def log_distributions(*shape: int, seed: int = 0) -> torch.Tensor:
    return draw(*shape, seed=seed).log_softmax(-1)


# --- the pure functions


@of_every_reading
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 5, 4), (3, 4, 3)], ids=str)
def test_dcm_with_its_gaussian_distributions_and_weights_held_fixed(shape, weighted, reading):
    cal, dat = log_distributions(2, *shape)
    weight = draw(shape[1]).exp() if weighted else None
    reference.check(
        lambda dat: dcm(cal, dat, weight, reading=reading),
        lambda dat: reference.dcm(cal, dat, weight, reading),
        dat,
    )


@of_every_reading
@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 5, 4), (3, 4, 3)], ids=str)
def test_lpm_with_the_prior_held_fixed(shape, reading):
    dat, pre = log_distributions(*shape), log_distributions(*shape[1:], seed=1)
    reference.check(
        lambda dat: lpm(dat, pre, reading=reading),
        lambda dat: reference.lpm(dat, pre, reading),
        dat,
    )


@of_every_reading
@pytest.mark.parametrize("n", [3, 6])
def test_outlier_weight(n, reading):
    pre = log_distributions(n, n - 1)
    reference.check(
        lambda pre: outlier_weight(entropy(pre), reading=reading),
        partial(reference.outlier_weight, reading=reading),
        pre,
    )


# --- the terms, from embeddings to the scalar


@of_every_kind
@pytest.mark.parametrize("t_scale", ["printed", "scale", "matched"])
@pytest.mark.parametrize("kernel", [(5.0, 16.0, 16.0), (2.5, 4.0, 2.0)], ids=str)
def test_terms_equal_their_loops(kernel, t_scale, reading, covariance):
    settings = dict(zip(("rho", "effective_dim", "prior_effective_dim"), kernel, strict=True))
    settings |= {"t_scale": t_scale, "reading": reading, "covariance": covariance}
    loops = reference.Adc(**settings)
    pairs = [
        (DCM(neighbours=NeighbourDistributions(**settings)), lambda z, prior: loops.dcm(z)),
        (LPM(neighbours=NeighbourDistributions(**settings)), loops.lpm),
        (ADC(nu=0.7, upsilon=0.2, **settings), partial(loops.adc, nu=0.7, upsilon=0.2)),
    ]
    for term, loop in pairs:
        z, prior = reference.same(
            lambda z, prior, term=term: term(Embeddings(z=z, prior=prior)), loop, draw(2, 4, 3), draw(4, 3, seed=1)
        )
        assert (z.abs() > 0).all()
        assert not prior.any()


@of_every_reading
def test_the_running_covariance_is_updated(reading):
    first, second = draw(2, 5, 3), 2 * draw(2, 5, 3, seed=1)
    fresh = reference.Adc(reading=reading, covariance="running")
    loops = reference.Adc(reading=reading, covariance="running", running=fresh.average(first))
    term = DCM(neighbours=NeighbourDistributions(reading=reading, covariance="running"))
    term(Embeddings(z=first))
    reference.same(lambda z: term(Embeddings(z=z)), loops.dcm, second)


@pytest.mark.parametrize(("reading", "covariance"), [kind for kind in KINDS if kind != ("paper", "batch")])
def test_gradcheck_from_embeddings_through_the_distributions(reading, covariance):
    """Not of the printed batch covariance: it is held fixed, which finite differences cannot do (the loops test it)."""
    neighbours = NeighbourDistributions(reading=reading, covariance=covariance, effective_dim=4.0)
    held = Embeddings(z=draw(2, 4, 3), prior=draw(4, 2, seed=1))
    cal, pre = neighbours.log_cal(held), neighbours.log_pre(held)
    weight = outlier_weight(entropy(pre), reading=reading)
    neighbours.eval()

    def loss(z):
        dat = neighbours.log_dat(Embeddings(z=z))
        return dcm(cal, dat, weight, reading=reading) + lpm(dat, pre, reading=reading)

    assert torch.autograd.gradcheck(loss, held.z.clone().requires_grad_())


def test_views_share_the_prior_and_have_equal_weights():
    z, prior = draw(3, 6, 4), draw(6, 5, seed=1)
    alone = [ADC()(view, prior=prior) for view in z]
    torch.testing.assert_close(ADC()(*z, prior=prior), torch.stack(alone).mean(), rtol=1e-12, atol=0)


# --- what is known about them


@of_every_kind
def test_dcm_is_exactly_zero_for_a_constant_batch(reading, covariance):
    z = draw(1, 1, 6).expand(2, 5, 6)
    neighbours = NeighbourDistributions(reading=reading, covariance=covariance)
    assert DCM(neighbours=neighbours)(Embeddings(z=z)) == 0


def test_dcm_is_zero_for_equidistant_points():
    simplex = torch.eye(6).double().expand(2, 6, 6)
    assert DCM()(Embeddings(z=simplex)).item() == pytest.approx(0, abs=1e-14)
    assert DCM()(Embeddings(z=draw(2, 6, 6))) > 1e-3


def test_lpm_is_smallest_at_the_priors_distribution():
    """Its minimum over all distributions is at the prior's own, where it is the entropy of that one (Gibbs)."""
    pre = log_distributions(6, 5)
    least = lpm(pre.unsqueeze(0), pre)
    torch.testing.assert_close(least, entropy(pre).mean())
    for seed in range(5):
        assert lpm((pre + 0.1 * draw(6, 5, seed=seed)).log_softmax(-1).unsqueeze(0), pre) > least


def test_the_printed_dirichlet_prefers_a_corner_to_its_own_parameter():
    """256 images, so 255 others, uniform alpha. The corner: one entry at one, 254 at 1e-6."""
    others = 255
    uniform = torch.full((1, others), -math.log(others), dtype=torch.float64)
    corner = torch.full((1, others), 1e-6, dtype=torch.float64)
    corner[0, 0] = 1 - corner[0, 1:].sum()
    log_density = {
        name: -lpm(log_p.unsqueeze(0), uniform, reading="paper").item()
        for name, log_p in (("alpha", uniform), ("corner", corner.log()))
    }
    assert log_density["alpha"] == pytest.approx(-4.98, abs=0.02)
    assert log_density["corner"] == pytest.approx(2083, abs=1)
    assert lpm(uniform.unsqueeze(0), uniform) < lpm(corner.log().unsqueeze(0), uniform)


@pytest.mark.parametrize("covariance", ["batch", "running"])
def test_a_detached_covariance_gives_a_gradient_in_scale_though_the_value_has_none(covariance):
    """Why z diverges in the paper's reading: its scale does not change the loss, but the gradient does change it."""
    z, prior = draw(2, 6, 3), draw(6, 3, seed=1)

    def pull(z, **settings):
        leaf = z.clone().requires_grad_()
        value = LPM(neighbours=NeighbourDistributions(**settings))(Embeddings(z=leaf, prior=prior))
        value.backward()
        return value.item(), (leaf * leaf.grad).sum().item()

    printed = {"reading": "paper", "covariance": covariance}
    assert pull(3 * z, **printed)[0] == pytest.approx(pull(z, **printed)[0], rel=1e-9)
    assert abs(pull(z, **printed)[1]) > 1
    for differentiated in ("sphere", "batch"):
        assert pull(z, covariance=differentiated)[1] == pytest.approx(0, abs=1e-12)


def test_the_printed_reading_has_no_gradient_at_usual_widths():
    """All probability is on the anchor, which is dropped: floors on both sides of LPM, weights of 1e8, no gradient."""
    z = draw(2, 256, 128).float().requires_grad_()
    ADC(reading="paper")(Embeddings(z=z, prior=draw(256, 64, seed=1).float())).backward()
    assert z.grad.abs().max() < 1e-20


def test_lpm_is_the_divergence_of_rows_plus_a_constant():
    """As in PKT and its relatives (docs/adc.md)."""
    e = Embeddings(z=draw(2, 12, 4), prior=draw(12, 5, seed=1))
    n = NeighbourDistributions()
    log_dat, log_pre = n.log_dat(e), n.log_pre(e)
    divergence = torch.nn.functional.kl_div(
        log_dat.flatten(0, 1), log_pre.repeat(2, 1), log_target=True, reduction="batchmean"
    )
    torch.testing.assert_close(LPM(neighbours=n)(e), divergence + entropy(log_pre).mean())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("width", "plain", "weighted", "norm"),
    [
        (8, (834, 841), (8.3e10, 8.4e10), (3.1e9, 3.2e9)),
        (16, (113, 127), (1.1e10, 1.3e10), (4.0e8, 4.5e8)),
        (32, (0.023, 0.051), (2.3e6, 5.1e6), (1.5e5, 4.2e5)),
        (64, (2.6e-11, 4.8e-11), (0.0026, 0.0048), (1.5e-4, 2.7e-4)),
        (128, (0, 1e-31), (0, 1e-23), (0, 1e-24)),
    ],
)
def test_the_printed_reading_explodes_for_narrow_z(width, plain, weighted, norm, seed):
    """The figures of docs/equations.md: weights of 1/H at their bound of 1e8, where cal and dat still differ."""
    z = draw(2, 256, width, seed=seed).requires_grad_()
    e = Embeddings(z=z, prior=draw(256, 64, seed=seed + 10))
    without, with_weights = (
        DCM(weighted=weights, neighbours=NeighbourDistributions(reading="paper"))(e) for weights in (False, True)
    )
    (gradient,) = torch.autograd.grad(with_weights, z)
    for value, (low, high) in ((without, plain), (with_weights, weighted), (gradient.norm(), norm)):
        assert 0.97 * low <= float(value.detach()) <= 1.03 * high


def test_one_duplicated_image_does_not_take_the_whole_weight():
    prior = draw(256, 64)
    prior[1] = prior[0]
    pre = NeighbourDistributions().log_pre(Embeddings(z=draw(1, 256, 2), prior=prior))
    weight, unbounded = outlier_weight(entropy(pre)), 1 / entropy(pre)
    assert weight.mean().item() == pytest.approx(1, rel=1e-12)
    assert weight.argmax() in (0, 1)
    assert 5 < weight.max() <= 10
    assert unbounded[:2].sum() / unbounded.sum() > 0.95


def test_weights_decrease_with_the_priors_entropy():
    pre = (draw(1, 20) * torch.linspace(0.1, 5, 21).double().unsqueeze(1)).log_softmax(-1)
    order = entropy(pre).argsort()
    for reading in READINGS:
        assert (outlier_weight(entropy(pre), reading=reading)[order].diff() <= 0).all()


def test_adc_weights_the_anchors_of_dcm_and_plain_dcm_does_not():
    z, prior = draw(2, 6, 4), draw(6, 3, seed=1)
    plain, weighted = DCM(), DCM(weighted=True)
    assert plain.needs == {"z"}
    assert weighted.needs == ADC().needs == LPM().needs == {"z", "prior"}
    e = Embeddings(z=z, prior=prior)
    torch.testing.assert_close(ADC(nu=2.0, upsilon=3.0)(e), 2 * weighted(e) + 3 * LPM()(e))
    assert (plain(e) - weighted(e)).abs() > 1e-4


def test_diagnosis_shows_on_which_side_of_the_crossover_the_batch_is():
    """At effective dimension 8 and rho 5, DCM sharpens where |z_i - z_j|^2 is above 0.58 or so."""
    spread, tight = draw(2, 12, 64), 1 + 0.3 * draw(2, 12, 64)
    for z, expected in ((spread, 1.0), (tight, 0.0)):
        e = Embeddings(z=z, prior=draw(12, 3))
        said = ADC().diagnose(e)
        assert said["sharpens/dcm"] == expected
        neighbours = NeighbourDistributions()
        for name in ("cal", "dat", "pre"):
            log_p = getattr(neighbours, f"log_{name}")(e)
            torch.testing.assert_close(said[f"entropy/{name}"], entropy(log_p).mean())


def test_diagnosis_does_not_update_the_running_covariance():
    objective = Objective(align=MSE(), constrain=ADC(covariance="running"))
    e = Embeddings(z=torch.randn(2, 8, 4), prior=torch.randn(8, 3))
    objective(e)
    before = {k: v.clone() for k, v in objective.state_dict().items()}
    objective.diagnose(Embeddings(z=torch.randn(2, 8, 4), prior=torch.randn(8, 3)))
    assert all(torch.equal(v, before[k]) for k, v in objective.state_dict().items())
    objective(Embeddings(z=torch.randn(2, 8, 4), prior=torch.randn(8, 3)))
    assert any(not torch.equal(v, before[k]) for k, v in objective.state_dict().items())


def test_dcm_is_ramped_in_and_lpm_is_not():
    z, prior = draw(2, 8, 4), draw(8, 3, seed=1)
    whole, ramped = ADC(nu=0.7, upsilon=0.2), ADC(nu=0.7, upsilon=0.2, ramp_epochs=4)
    lpm_alone = 0.2 * LPM()(*z, prior=prior)
    for epoch, share in ((0.0, 0.0), (1.0, 0.25), (3.0, 0.75), (4.0, 1.0), (9.0, 1.0)):
        ramped.set_epoch(epoch)
        expected = lpm_alone + share * (whole(*z, prior=prior) - lpm_alone)
        torch.testing.assert_close(ramped(*z, prior=prior), expected)
    objective = Objective(align=MSE(), constrain=DCM(ramp_epochs=2))
    objective.set_epoch(0.5)
    torch.testing.assert_close(objective(Embeddings(z=z)).constrain["dcm"], 0.25 * DCM()(*z))


# --- LPM at a linear head on h, and over a bank


@of_every_kind
def test_lpm_at_h_reads_r_in_the_place_of_z(reading, covariance):
    z, r, prior = draw(2, 6, 4), draw(2, 6, 3, seed=1).requires_grad_(), draw(6, 3, seed=2)
    settings = {"reading": reading, "covariance": covariance}
    at_h = LPM(neighbours=NeighbourDistributions(**settings), at="h")
    at_z = LPM(neighbours=NeighbourDistributions(**settings))
    e = Embeddings(z=z, r=r, p=draw(2, 6, 4, seed=3), teacher=draw(2, 6, 4, seed=4), prior=prior)
    assert at_h.needs == {"z", "r", "prior"}
    value, expected = at_h(e), at_z(Embeddings(z=r, prior=prior))
    assert value == expected
    assert value != LPM(neighbours=NeighbourDistributions(**settings))(e)
    (gradient,), (wanted,) = (torch.autograd.grad(x, r) for x in (value, expected))
    assert torch.equal(gradient, wanted)
    assert gradient.any()
    with torch.no_grad():
        assert at_h.diagnose(e) == at_z.diagnose(Embeddings(z=r, prior=prior))


def over_bank(r, prior, indices, bank, bank_indices, rho, dim, t_scale):
    """Eq. 16 with the images of a bank as neighbours, entry by entry."""
    width = bank.shape[1]
    centre = [sum(row[k] for row in bank) / len(bank) for k in range(width)]
    variance = sum(sum((row[k] - centre[k]) ** 2 for row in bank) / (len(bank) - 1) for k in range(width)) / width
    factor = dim / width / variance

    def distribution(anchor, index):
        kernel = {}
        for j, entry in enumerate(bank):
            if bank_indices[j] != index:
                distance = factor * sum((a - b) ** 2 for a, b in zip(anchor, entry, strict=True))
                kernel[j] = reference.log_student(reference.scale_for_student(distance, rho, t_scale), rho, dim).exp()
        return {j: value / sum(kernel.values()) for j, value in kernel.items()}

    total = 0.0
    for view in r:
        for i in range(len(prior)):
            pre, dat = distribution(prior[i], indices[i]), distribution(view[i], indices[i])
            total = total - sum(pre[j] * dat[j].log() for j in pre)
    return total / (r.shape[0] * r.shape[1])


BANK = draw(9, 3, seed=3) * 2 + 5
PLACES = torch.tensor([3, 7, 100, 5, 4, 0, 1, 22, 9])
INDICES = torch.tensor([7, 50, 9, 3])  # the second one is not in the bank


def lpm_over_bank(**settings):
    term = LPM(neighbours=NeighbourDistributions(**settings), at="bank")
    term.set_bank(BANK, PLACES)
    return term


@pytest.mark.parametrize("t_scale", ["printed", "scale", "matched"])
@pytest.mark.parametrize(("rho", "dim"), [(5.0, 16.0), (2.5, 2.0)])
def test_lpm_over_a_bank_equals_its_loop(rho, dim, t_scale):
    term = lpm_over_bank(rho=rho, prior_effective_dim=dim, t_scale=t_scale)
    prior = draw(4, 3, seed=4) + 5
    z = draw(2, 4, 5)
    assert term.needs == {"z", "r", "prior", "indices"}
    (gradient,) = reference.same(
        lambda r: term(Embeddings(z=z, r=r, prior=prior, indices=INDICES)),
        lambda r: over_bank(r, prior, INDICES, BANK, PLACES, rho, dim, t_scale),
        draw(2, 4, 3, seed=5) + 5,
    )
    assert (gradient.abs() > 0).all()


def test_the_gradient_over_a_bank_is_that_of_finite_differences():
    term, z, prior = lpm_over_bank(), draw(2, 4, 5), draw(4, 3, seed=4) + 5
    r = (draw(2, 4, 3, seed=5) + 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: term(Embeddings(z=z, r=r, prior=prior, indices=INDICES)), r)
    prior.requires_grad_()
    term(Embeddings(z=z, r=r, prior=prior, indices=INDICES)).backward()
    assert prior.grad is None, "the prior is constant"


def test_an_anchor_is_not_its_own_neighbour_in_the_bank():
    """Where the entry of the anchor itself lies does not matter, apart from the bank's mean and scale."""
    neighbours, rows = NeighbourDistributions(), draw(1, 4, 3) + 5
    itself = INDICES.unsqueeze(1) == PLACES
    found = neighbours.log_over_bank(rows, BANK, itself).exp()
    assert found.sum(-1).allclose(torch.ones(1, 4, dtype=torch.float64))
    assert (found[0][itself] == 0).all()
    assert (found[0][~itself] > 0).all()


def test_lpm_over_a_bank_is_smallest_where_r_is_the_prior():
    term, prior = lpm_over_bank(), draw(4, 3, seed=4) + 5
    r = prior.expand(2, -1, -1)
    values = [float(term(Embeddings(z=r, r=x, prior=prior, indices=INDICES))) for x in (r, r + 0.3, r - 0.3)]
    assert values[0] < min(values[1:])
    e = Embeddings(z=r, r=r, prior=prior, indices=INDICES)
    entropies = term.diagnose(e)
    assert entropies["entropy/dat"] == pytest.approx(values[0])
    assert entropies["entropy/dat"] == pytest.approx(float(entropies["entropy/pre"]))


def test_mistakes_of_lpm_at_a_place():
    with pytest.raises(ValueError, match="reading='paper' has no bank"):
        LPM(neighbours=NeighbourDistributions(reading="paper"), at="bank")
    e = Embeddings(z=draw(2, 4, 5), r=draw(2, 4, 3), prior=draw(4, 3), indices=INDICES)
    with pytest.raises(ValueError, match=r"needs the prior's features of the data set: call set_bank\(\) first"):
        LPM(at="bank")(e)
    with pytest.raises(ValueError, match="reads 'r', which was not given"):
        LPM(at="h")(Embeddings(z=draw(2, 4, 5), prior=draw(4, 3)))


def test_adc_passes_on_where_lpm_reads():
    e = Embeddings(z=draw(2, 4, 5), r=draw(2, 4, 3), prior=draw(4, 3), indices=INDICES)
    for at in ("z", "h"):
        parts = ADC(nu=0.3, upsilon=2.0, lpm_at=at)
        assert float(parts(e)) == pytest.approx(float(0.3 * DCM(weighted=True)(e) + 2 * LPM(at=at)(e)))
    assert ADC(lpm_at="h")(e) != ADC()(e)
