"""Charts: coordinates of their points, ticks, escaping, swept settings."""

import math

import pytest
from markupsafe import Markup

from glf.reporting.chart import MAX_POINTS, Chart, Point, Series, axis_range, axis_ticks, element, svg, thin_out
from glf.reporting.study_charts import swept_settings


def drawn(points: list[Point], **changed: object) -> str:
    return svg(Chart(key="k", title="t", series=(Series(name="a", points=tuple(points)),), **changed))  # type: ignore[arg-type]


def test_a_curve_runs_from_corner_to_corner() -> None:
    text = drawn([Point(0, 0), Point(1, 1)])
    # A margin of 4 % of the range on every side: x from 46 to 350, y from 174 to 8.
    assert 'd="M57.3 167.9L338.7 14.1"' in text
    assert drawn([]) == '<p class="soft">t: no finite values</p>'


def test_a_log_axis_has_equal_steps_for_equal_factors() -> None:
    text = drawn([Point(0.1, 0), Point(1, 1), Point(10, 0)], log_x=True)
    line = next(part for part in text.split("<path ") if 'class="line' in part)
    xs = [float(place.split(" ")[0]) for place in line.partition('d="M')[2].partition('"')[0].split("L")]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.11)


def test_thinning_out_drops_values_that_are_not_finite_and_keeps_the_last() -> None:
    assert thin_out([(1, math.inf), (2, 1.0)]) == (Point(2, 1.0),)
    many = thin_out((step, float(step)) for step in range(10_000))
    assert len(many) <= MAX_POINTS
    assert many[-1] == Point(9_999, 9_999.0)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.2, 17.0), (1e-4, 2e-4), (5.0, 5.0), (-1e6, 1e6)])
def test_ticks_are_few_and_within_the_range(low: float, high: float) -> None:
    found = axis_ticks(*axis_range([low, high]))
    assert 1 <= len(found) <= 7
    assert all(axis_range([low, high])[0] <= tick <= axis_range([low, high])[1] for tick in found)


def test_text_is_escaped_in_elements_and_attributes() -> None:
    assert element("p", "<b>", title='"<b>"') == '<p title="&#34;&lt;b&gt;&#34;">&lt;b&gt;</p>'
    assert element("p", "<b>", Markup("<b>"), None) == "<p>&lt;b&gt;<b></p>"
    assert "<b>" not in drawn([Point(0, 0)], x="<b>", y="<b>").replace("<b></b>", "")


def test_a_setting_is_swept_only_if_nothing_else_changes() -> None:
    both = {"a": {"nu": 1, "rho": 3}, "b": {"nu": 2, "rho": 4}, "c": {"nu": 3, "rho": 5}}
    assert swept_settings(both) == []
    assert swept_settings({"a": {"weighted": True}, "b": {"weighted": False}}) == []
