import pytest
import torch

from glf.align.distance import MSE, Cosine
from glf.align.predict import PredictTeacher
from glf.constrain.adc import ADC, DCM, LPM
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.constrain.contrast import LogPartition
from glf.constrain.moments import Covariance, Variance
from glf.terms import Sum, Term, pack
from glf.types import Embeddings
from reference import draw

E = Embeddings(z=draw(2, 6, 4), prior=draw(6, 3, seed=1))


def test_weights_distribute_over_sums():
    a, b, c = MSE(), Variance(), Covariance()
    assert [w for w, _ in (2 * (a + 3 * b)).parts] == [2, 6]
    assert (2 * (a + b)).parts == (2 * a + 2 * b).parts
    assert ((a + b) + c).parts == (a + (b + c)).parts
    expected = 2 * a(E) + 6 * b(E) + 10 * c(E)
    torch.testing.assert_close((2 * (a + 3 * b + 5 * c))(E), expected, rtol=1e-12, atol=0)


def test_a_sum_has_its_terms_and_their_needs():
    a, adc = PredictTeacher(), ADC()
    total = a + 0.5 * adc
    assert [term.name for _, term in total.parts] == ["predict_teacher", "dcm", "lpm"]
    assert total.parts[0][1] is a
    assert total.parts[2][1] is adc.parts[1][1]
    assert total.needs == {"z", "p", "teacher", "prior"}
    assert set(total.diagnose(E)) == {"entropy/cal", "entropy/dat", "entropy/pre", "sharpens/dcm"}


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (MSE(), "MSE()"),
        (Cosine(temperature=0.5), "temperature=0.5"),
        (LogPartition(0.07), "temperature=0.07"),
        (25 * Variance(floor=2.0) + 2 * Covariance(), "weights=(25.0, 2.0)"),
        (25 * Variance(floor=2.0) + 2 * Covariance(), "floor=2.0"),
        (ADC(nu=0.1, reading="paper"), "nu=0.1, upsilon=1.0, ramp_epochs=0.0"),
        (ADC(nu=0.1, reading="paper"), "reading='paper'"),
        (DCM(), "effective_dim=8.0"),
        (LPM(neighbours=NeighbourDistributions(prior_effective_dim=2.0)), "prior_effective_dim=2.0"),
    ],
)
def test_repr_shows_the_configuration(term, words):
    assert words in repr(term)


def test_plain_tensors_are_packed():
    z0, z1 = E.z
    torch.testing.assert_close(ADC()(z0, z1, prior=E.prior), ADC()(E), rtol=0, atol=0)
    torch.testing.assert_close((MSE() + Variance())(z0, z1), MSE()(E) + Variance()(E))
    packed = pack(z0, z1, p=(z0, z1), teacher=E.z)
    assert torch.equal(packed.p, E.z)
    assert packed.prior is None


@pytest.mark.parametrize(
    ("views", "fields", "words"),
    [
        ((), {}, "one .batch, dim. tensor per view"),
        ((E, E), {}, "one .batch, dim. tensor per view"),
        ((draw(4, 3), draw(5, 3)), {}, r"one shape, not \[\(4, 3\), \(5, 3\)\]"),
        ((draw(2, 4, 3),), {}, r"not \[\(2, 4, 3\)\]"),
        ((draw(4, 3),), {"priors": draw(4, 2)}, "unknown field 'priors'"),
        ((draw(4, 3),), {"prior": draw(5, 2)}, r"one feature vector per image \(4\), not shape \(5, 2\)"),
        ((draw(4, 3),), {"prior": draw(4)}, r"\(4\), not shape \(4,\)"),
    ],
)
def test_invalid_tensors_are_refused(views, fields, words):
    with pytest.raises(ValueError, match=words):
        MSE()(*views, **fields)


def test_a_term_without_forward_is_an_error():
    with pytest.raises(NotImplementedError, match="Term"):
        Term()(E)


def test_the_state_of_terms_is_saved():
    total = Sum((1.0, MSE()), (1.0, ADC(covariance="running")))
    total(E)
    assert any(name.endswith("running.covariance") for name in total.state_dict())


def test_terms_compute_in_full_precision_inside_autocast():
    e = Embeddings(z=draw(2, 64, 16).float())
    expected = LogPartition(0.2)(e)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for found in (LogPartition(0.2)(e), LogPartition(0.2)(*e.z)):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
