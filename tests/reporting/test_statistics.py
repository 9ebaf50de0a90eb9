"""The paired interval against scipy's own test, and what it calls shown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from glf.reporting.statistics import paired


@given(
    st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=3, max_size=8),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_the_interval_is_that_of_the_paired_t_test(pairs: list[tuple[float, float]], confidence: float) -> None:
    base, other = zip(*pairs, strict=True)
    differences = [b - a for a, b in pairs]
    if max(differences) - min(differences) < 1e-6:  # scipy divides by the deviation
        return
    expected = ttest_rel(other, base).confidence_interval(confidence)
    found = paired(base, other, confidence)
    assert found.low == pytest.approx(expected.low, rel=1e-9, abs=1e-9)
    assert found.high == pytest.approx(expected.high, rel=1e-9, abs=1e-9)
    assert found.pairs == len(pairs)


def test_one_pair_shows_nothing() -> None:
    found = paired([1.0], [9.0])
    assert (found.mean, found.low, found.high) == (8.0, -math.inf, math.inf)
    assert not found.shown


@pytest.mark.parametrize(("gain", "shown"), [(1.0, True), (-1.0, True), (0.0, False)])
def test_shown_is_an_interval_without_zero(gain: float, shown: bool) -> None:
    noise = [0.1, -0.1, 0.05, -0.05, 0.0]
    assert paired([0.0] * 5, [gain + one for one in noise]).shown is shown


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])
