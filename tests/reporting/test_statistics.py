"""Paired differences against scipy's paired t-test."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from glf.reporting.statistics import paired_difference


@given(
    st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=3, max_size=8),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_interval_of_the_paired_t_test(pairs: list[tuple[float, float]], confidence: float) -> None:
    base, other = zip(*pairs, strict=True)
    differences = [b - a for a, b in pairs]
    if max(differences) - min(differences) < 1e-6:  # scipy divides by the standard deviation
        return
    expected = ttest_rel(other, base).confidence_interval(confidence)
    found = paired_difference(base, other, confidence)
    assert found.low == pytest.approx(expected.low, rel=1e-9, abs=1e-9)
    assert found.high == pytest.approx(expected.high, rel=1e-9, abs=1e-9)
    assert found.pairs == len(pairs)


def test_one_pair_is_not_significant() -> None:
    found = paired_difference([1.0], [9.0])
    assert (found.mean, found.low, found.high) == (8.0, -math.inf, math.inf)
    assert not found.significant
    assert str(found) == "+8.00, n.s."


@pytest.mark.parametrize(("gain", "significant"), [(1.0, True), (-1.0, True), (0.0, False)])
def test_significant_means_that_the_interval_excludes_zero(gain: float, significant: bool) -> None:
    noise = [0.1, -0.1, 0.05, -0.05, 0.0]
    assert paired_difference([0.0] * 5, [gain + one for one in noise]).significant is significant


def test_different_numbers_of_values_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([1.0, 2.0], [1.0])
