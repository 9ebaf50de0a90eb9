"""ADC on degenerate batches, in half precision, and with invalid input."""

import pytest
import torch

from glf.constrain.adc import ADC, DCM, LPM
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.types import Embeddings
from reference import KINDS, READINGS, draw

of_every_reading = pytest.mark.parametrize("reading", READINGS)
of_every_kind = pytest.mark.parametrize(("reading", "covariance"), KINDS, ids=str)


def edge(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    z, prior = draw(2, 2 if name == "two images" else 8, 64 if name == "wide" else 6), draw(8, 5, seed=1)
    prior = prior[: z.shape[1]]
    if name == "duplicates":
        z[:, 1], prior[1] = z[:, 0], prior[0]
    elif name == "constant prior":
        prior = prior[:1].expand(8, 5)
    elif name.endswith(" z"):
        kind = name.removesuffix(" z")
        z = z[:, :1].expand_as(z) if kind == "constant" else z * {"huge": 1e4, "tiny": 1e-6, "zero": 0.0}[kind]
    return z, prior


EDGES = ("two images", "duplicates", "constant prior", "wide", "constant z", "zero z", "huge z", "tiny z")
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)
# The gradient grows as 1/|z|: at 1e-6 it is beyond the range of float16.
CASES = [(name, dtype) for name in EDGES for dtype in PRECISIONS if (name, dtype) != ("tiny z", torch.float16)]


@of_every_kind
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_edges_are_finite_in_value_and_gradient(name, dtype, reading, covariance):
    z, prior = edge(name)
    leaves = [view.to(dtype).requires_grad_() for view in z]
    value = ADC(reading=reading, covariance=covariance)(*leaves, prior=prior.to(dtype))
    value.backward()
    assert value.dtype == torch.float32
    assert value.isfinite()
    assert all(leaf.grad.isfinite().all() for leaf in leaves), [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("width", [1, 4, 64])
@pytest.mark.parametrize("scale", [0.0, 1e-25])
def test_a_prior_of_identical_images_is_finite(width, scale):
    z0, z1 = (z.float().requires_grad_() for z in draw(2, 8, 6))
    value = ADC(prior_effective_dim=1024)(z0, z1, prior=3.3 + scale * draw(8, width).float())
    value.backward()
    assert value.isfinite()
    assert z0.grad.isfinite().all()


def test_half_precision_embeddings_are_accepted():
    z, prior = draw(2, 8, 6).half(), draw(8, 5, seed=1).half()
    torch.testing.assert_close(ADC()(Embeddings(z=z, prior=prior)), ADC()(*z, prior=prior))


@pytest.mark.parametrize("covariance", ["batch", "running"])
def test_a_wide_and_nearly_flat_batch_can_be_whitened(covariance):
    """In float32 the ridge is below the rounding error of the one large eigenvalue, and the factorisation fails."""
    z = (draw(2, 8, 1) * draw(1024, seed=1) + 1e-4 * draw(2, 8, 1024)).float().requires_grad_()
    value = DCM(neighbours=NeighbourDistributions(reading="paper", covariance=covariance))(Embeddings(z=z))
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("settings", [{}, {"covariance": "batch"}, {"reading": "paper"}], ids=str)
def test_autocast_does_not_affect_the_statistics(settings):
    z0, z1, prior = draw(3, 16, 16).float()
    expected = ADC(**settings)(z0, z1, prior=prior)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ADC(**settings)(z0, z1, prior=prior) == expected


@of_every_reading
@pytest.mark.parametrize("term", [ADC, DCM, LPM])
def test_one_image_is_refused(term, reading):
    made = term(reading=reading) if term is ADC else term(neighbours=NeighbourDistributions(reading=reading))
    with pytest.raises(ValueError, match="at least two in a batch, not 1"):
        made(draw(1, 4), draw(1, 4), prior=draw(1, 3))


@pytest.mark.parametrize("term", [ADC(), LPM(), DCM(weighted=True)], ids=lambda term: term.name)
def test_a_missing_or_wrong_prior_is_refused(term):
    z0, z1 = draw(2, 6, 4)
    with pytest.raises(ValueError, match=r"'prior'.*pass prior="):
        term(z0, z1)
    with pytest.raises(ValueError, match=r"one feature vector per image \(6\).*\(5, 3\)"):
        term(z0, z1, prior=draw(5, 3))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rho": 2.0}, "rho must be above 2.*2.0"),
        ({"effective_dim": 0.0}, "^effective_dim must be above 0, got 0.0"),
        ({"prior_effective_dim": -1.0}, "prior_effective_dim must be above 0, got -1.0"),
        ({"ramp_epochs": -1.0}, "ramp_epochs must be at least 0, got -1.0"),
        ({"reading": "paper", "covariance": "sphere"}, "'batch' or 'running'"),
    ],
)
def test_invalid_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        ADC(**settings)


@pytest.mark.parametrize("wrong", [{"reading": "printed"}, {"covariance": "bach"}, {"t_scale": "match"}])
def test_misspelt_choices_are_refused(wrong):
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong.values()))):  # TypeError: beartype is faster
        ADC(**wrong)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("reading", ["calibrated", "paper"])
@pytest.mark.parametrize("covariance", ["batch", "running"])
def test_an_estimated_covariance_of_bad_embeddings_gives_nan(reading, covariance, bad):
    """As every other loss does, so that the doctor can name the step; an error would need the values of the device."""
    z = draw(2, 8, 4)
    z[0, 0, 0] = bad
    assert ADC(reading=reading, covariance=covariance)(*z, prior=draw(8, 3)).isnan()
