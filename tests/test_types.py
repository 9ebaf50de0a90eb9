from dataclasses import replace

import pytest
import torch

from glf.constrain.adc import ADC
from glf.types import GIVEN, Embeddings, Loss
from reference import draw, draw_fields


def test_cached_computes_once():
    e, calls = Embeddings(z=draw(2, 4, 3)), []

    def compute():
        calls.append(len(calls))
        return calls[-1]

    assert [e.cached("key", compute), e.cached("key", compute), e.cached("other", compute)] == [0, 0, 1]


def test_replaced_embeddings_share_nothing_with_the_old():
    fields = draw_fields()
    old = Embeddings(z=fields["z"], prior=fields["prior"])
    adc = ADC()
    before = adc(old)
    new = replace(old, z=fields["p"])
    assert adc(new) == adc(Embeddings(z=fields["p"], prior=fields["prior"]))
    assert adc(new) != before
    assert adc(old) == before


def test_values_computed_without_gradients_are_not_reused_by_a_loss():
    fields, adc = draw_fields(), ADC()
    e = Embeddings(z=fields["z"].requires_grad_(), prior=fields["prior"])
    with torch.no_grad():
        silent = adc(e)
    value = adc(e)
    assert value == silent
    value.backward()
    assert e.z.grad.any()


def test_map_applies_to_every_field_that_is_present():
    fields = draw_fields()
    doubled = Embeddings(**fields).map(lambda x: 2 * x)
    assert set(fields) == set(GIVEN)
    assert all(torch.equal(getattr(doubled, name), 2 * value) for name, value in fields.items())
    assert Embeddings(z=fields["z"]).map(torch.neg).prior is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_full_precision_is_at_least_float32(given, expected):
    fields = {name: value.to(given) for name, value in draw_fields().items() if value.is_floating_point()}
    full = Embeddings(**fields).in_full_precision()
    assert all(getattr(full, name).dtype == expected for name in fields)


@pytest.mark.parametrize("name", ["prior", "r", "p", "teacher"])
def test_a_missing_field_is_an_error_that_says_how_to_provide_it(name):
    e = Embeddings(z=draw(2, 4, 3))
    assert e.require("z") is e.z
    with pytest.raises(ValueError, match=f"reads '{name}', which was not given: pass {name}="):
        e.require(name)


def test_the_log_of_a_loss_is_flat_and_detached():
    one = torch.ones((), requires_grad=True)
    log = Loss(total=3 * one, align={"mse": one}, constrain={"dcm": 2 * one}).log()
    assert {name: value.item() for name, value in log.items()} == {
        "loss": 3,
        "align/mse": 1,
        "constrain/dcm": 2,
    }
    assert not any(value.requires_grad for value in log.values())
