"""The learning-rate schedule."""

import math

import pytest

from glf.nn.schedule import warmup_cosine


def test_linear_warm_up_then_cosine_to_zero() -> None:
    factor = warmup_cosine(10, 110)
    assert [factor(0), factor(9)] == pytest.approx([0.1, 1.0])
    assert [factor(s) for s in (10, 60, 110)] == pytest.approx([1.0, 0.5, 0.0])
    assert factor(35) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert warmup_cosine(0, 4)(0) == 1.0
