import math

import pytest
import torch

from glf.align.distance import MSE, Cosine, Diagonal
from glf.align.predict import PredictTeacher
from glf.constrain.adc import ADC, DCM, neighbours
from glf.constrain.contrast import LogPartition
from glf.constrain.moments import Covariance, Redundancy, Standardise, Variance
from glf.methods import METHODS, parse
from glf.objective import Objective, gradient_shares
from glf.types import Embeddings, Loss
from reference import draw, draw_fields


def embeddings(**changes) -> Embeddings:
    return Embeddings(**draw_fields() | changes)


def vicreg() -> Objective:
    return Objective(align=25 * MSE(), constrain=25 * Variance() + 2 * Covariance())


def test_a_term_in_the_wrong_role_is_refused():
    with pytest.raises(ValueError, match="variance is a term to constrain: pass it as constrain=, not as align="):
        Objective(align=MSE() + Variance())
    with pytest.raises(ValueError, match="mse is a term to align: pass it as align=, not as constrain="):
        Objective(align=MSE(), constrain=ADC() + MSE())


def test_contributions_are_weighted_and_sum_to_the_total():
    e, loss = embeddings(), vicreg().constrained_by(ADC(nu=0.2, upsilon=0.4))(embeddings())
    assert list(loss.align) == ["mse"]
    assert list(loss.constrain) == ["variance", "covariance", "dcm", "lpm"]
    torch.testing.assert_close(loss.align["mse"], 25 * MSE()(e))
    torch.testing.assert_close(loss.constrain["dcm"], 0.2 * DCM(weighted=True)(e))
    parts = [value for name, value in loss.log().items() if name != "loss"]
    torch.testing.assert_close(loss.total, torch.stack(parts).sum(), rtol=1e-12, atol=0)


def test_terms_with_the_same_name_are_summed_in_the_log():
    e = embeddings()
    loss = Objective(align=MSE(), constrain=LogPartition(0.1) + 2 * LogPartition(0.5))(e)
    expected = LogPartition(0.1)(e) + 2 * LogPartition(0.5)(e)
    torch.testing.assert_close(loss.constrain["log_partition"], expected)
    torch.testing.assert_close(loss.total, MSE()(e) + expected)


def test_constrained_by_shares_the_terms_and_does_not_change_the_base():
    base = Objective(align=Diagonal(), constrain=0.1 * Redundancy(), transforms=[Standardise()])
    before, parts = base(embeddings()).total, base.parts
    extended = base.constrained_by(ADC())
    assert extended.parts[: len(parts)] == base.parts == parts
    assert extended.align is base.align
    assert list(extended.transforms) == list(base.transforms)
    assert base(embeddings()).total == before
    assert [term.name for _, term in Objective(align=MSE()).constrained_by(ADC()).parts] == ["mse", "dcm", "lpm"]


def test_an_objective_needs_what_its_terms_need():
    assert vicreg().needs == {"z"}
    assert Objective(align=PredictTeacher()).needs == {"z", "p", "teacher"}
    assert Objective(align=PredictTeacher(), constrain=ADC()).needs == {"z", "p", "teacher", "prior"}


def test_adc_reads_z_before_the_methods_own_transforms():
    e = embeddings()
    loss = parse("barlow_twins+adc").build()(e)
    (standardised,) = parse("barlow_twins").build().transforms
    weight = 0.3 * METHODS["barlow_twins"].scale
    torch.testing.assert_close(loss.constrain["dcm"], weight * DCM(weighted=True)(e), rtol=1e-12, atol=0)
    assert (loss.constrain["dcm"] - 0.3 * DCM(weighted=True)(standardised(e))).abs() > 1e-3
    torch.testing.assert_close(loss.align["diagonal"], Diagonal()(standardised(e)))


def test_a_quantity_of_several_terms_is_computed_once(monkeypatch):
    calls, divergences = [], neighbours.divergences
    monkeypatch.setattr(
        neighbours, "divergences", lambda *given, **how: calls.append(given[0].shape) or divergences(*given, **how)
    )
    vicreg().constrained_by(ADC())(embeddings())
    assert calls == [(2, 6, 4)]  # one pass for both views and both terms


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", [{}, {"reading": "paper"}], ids=str)
def test_the_objective_is_computed_in_float32_under_autocast(dtype, settings):
    half = {name: value.to(dtype) for name, value in draw_fields().items() if value.is_floating_point()}
    full = {name: value.float() for name, value in half.items()}
    objective = vicreg().constrained_by(ADC(**settings))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, said = objective(Embeddings(**half)), objective.diagnose(Embeddings(**half))
    assert loss.total.dtype == torch.float32
    assert loss.log() == objective(Embeddings(**full)).log()
    assert said == objective.diagnose(Embeddings(**full))


def test_diagnosis_has_no_gradient_and_does_not_affect_the_loss():
    objective = vicreg().constrained_by(ADC())
    e = embeddings(z=draw_fields()["z"].requires_grad_())
    said = objective.diagnose(e)
    assert set(said) == {"entropy/cal", "entropy/dat", "entropy/pre", "sharpens/dcm"}
    assert not any(value.requires_grad for value in said.values())
    assert all(share > 0 for share in gradient_shares(objective(e), e.z).values())


def test_gradient_shares_are_proportional_to_gradient_norms_and_sum_to_one():
    objective = Objective(align=Cosine(0.5), constrain=LogPartition(0.5)).constrained_by(ADC())
    z = draw_fields()["z"].requires_grad_()
    loss = objective(embeddings(z=z))
    shares = gradient_shares(loss, z)
    assert list(shares) == [f"share/{name}" for name in loss.log() if name != "loss"]
    assert sum(shares.values()).item() == pytest.approx(1, rel=1e-6)
    norms = [torch.autograd.grad(part, z, retain_graph=True)[0].norm() for part in loss.constrain.values()]
    ratio = shares["share/constrain/dcm"] / shares["share/constrain/lpm"]
    assert ratio.item() == pytest.approx((norms[1] / norms[2]).item(), rel=1e-5)


def test_a_gradient_that_is_not_finite_does_not_affect_the_other_shares():
    z = draw(2, 4, 3).requires_grad_()
    root, square = (z - z.detach()).square().sum().sqrt(), z.square().sum()  # 0 / 0 in the root's gradient
    loss = Loss(total=root + square, align={"root": root}, constrain={"square": square})
    shares = {name: share.item() for name, share in gradient_shares(loss, z).items()}
    assert math.isnan(shares["share/align/root"])
    assert shares["share/constrain/square"] == 1


def test_a_term_without_gradient_at_z_has_share_zero():
    z, elsewhere = draw(2, 4, 3).requires_grad_(), draw(1)[0].requires_grad_()
    reaching, detached = z.square().sum(), z.detach().square().sum()
    loss = Loss(
        total=reaching + detached + elsewhere, align={"a": reaching}, constrain={"b": detached, "c": 1 * elsewhere}
    )
    shares = {name: share.item() for name, share in gradient_shares(loss, z).items()}
    assert shares == {"share/align/a": 1, "share/constrain/b": 0, "share/constrain/c": 0}
