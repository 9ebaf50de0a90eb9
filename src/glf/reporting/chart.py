"""Charts as data, and as inline SVG: no fonts, no scripts, no network; colours come from chart.css."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, NamedTuple

from markupsafe import Markup, escape

MAX_POINTS = 300  # of a curve: more than its pixels could show
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 210, 46, 10, 8, 36
ROWS_WIDTH, ROW_HEIGHT, ROW_LABEL_WIDTH = 560, 22, 150  # of a chart with named rows
LEGEND_HEIGHT = 16  # of a line of the legend
COLOURS = 10  # .c0 to .c9 in chart.css
Kind = Literal["line", "steps", "dots", "intervals"]
Range = tuple[float, float]
Scale = Callable[[float], float]  # from a value to a coordinate


class Point(NamedTuple):
    """A point, optionally with an interval of y (of x in a chart with named rows)."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Named points; ``faint`` draws them hollow, for differences that are not significant."""

    name: str
    points: tuple[Point, ...]
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One pair of axes. ``key`` names its files; ``rows`` are the labels of a vertical axis without numbers."""

    key: str
    title: str
    series: tuple[Series, ...]
    kind: Kind = "line"
    x: str = "step"
    y: str = ""
    log_x: bool = False
    log_y: bool = False
    rows: tuple[str, ...] = ()
    zero: bool = False  # draw a line at 0

    def points(self) -> list[Point]:
        return [point for series in self.series for point in series.points]


def thin_out(values: Iterable[tuple[float, float]]) -> tuple[Point, ...]:
    """The finite values of a curve, evenly thinned out to at most MAX_POINTS; keeps the last one.

    >>> thin_out([(1, 2.0), (2, math.nan), (3, 4.0)])
    (Point(x=1, y=2.0, low=None, high=None), Point(x=3, y=4.0, low=None, high=None))
    """
    found = [Point(x, y) for x, y in values if math.isfinite(x) and math.isfinite(y)]
    stride = math.ceil(len(found) / MAX_POINTS) or 1
    return tuple(found[(len(found) - 1) % stride :: stride])


def axis_ticks(low: float, high: float, log: bool = False, count: int = 4) -> list[float]:
    """Round numbers within a range.

    >>> axis_ticks(0.13, 0.94), axis_ticks(0.002, 30, log=True)
    ([0.25, 0.5, 0.75], [0.01, 0.1, 1.0, 10.0])
    """
    if log:
        powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
        stride = math.ceil(len(powers) / (count + 2)) or 1
        return [10.0**power for power in powers[::stride]]
    rough = (high - low) / count or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def axis_range(values: Iterable[float], log: bool = False) -> Range:
    """Smallest and largest finite value, with a margin."""
    found = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not found:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(found), max(found)
    if log:
        return (low / 1.15, high * 1.15)
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return low - margin, high + margin


def tick_label(value: float) -> str:
    """A number on an axis.

    >>> tick_label(0.25), tick_label(1500), tick_label(1e-05), tick_label(840)
    ('0.25', '1.5k', '1e-5', '840')
    """
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"


def element(name: str, /, *children: str | None, **attributes: object) -> Markup:
    """An SVG or HTML element. Escapes text and attributes; children that are Markup are already escaped.

    >>> print(element("text", "a < b", element("tspan", "!"), class_="x", text_anchor='"'))
    <text class="x" text-anchor="&#34;">a &lt; b<tspan>!</tspan></text>
    """
    pairs = [f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items()]
    content = [escape(child) for child in children if child is not None]
    return Markup(f"<{name}{''.join(pairs)}>{''.join(content)}</{name}>")


def svg(chart: Chart) -> Markup:
    """The chart as an SVG element, described in words by its aria-label."""
    if not chart.points():
        return element("p", f"{chart.title}: no finite values", class_="soft")
    left, width = (ROW_LABEL_WIDTH, ROWS_WIDTH) if chart.rows else (LEFT, WIDTH)
    height = TOP + BOTTOM + ROW_HEIGHT * len(chart.rows) if chart.rows else HEIGHT
    named = [series for series in chart.series if series.name] if len(chart.series) > 1 and not chart.rows else []
    x_range, y_range = _ranges(chart)
    x_scale = _scale(x_range, left, width - RIGHT, chart.log_x)
    y_scale = _scale(y_range, height - BOTTOM, TOP, chart.log_y)
    return element(
        "svg",
        *_axes(chart, x_scale, y_scale, x_range, y_range, left, width, height),
        *(_series(chart, i, one, x_scale, y_scale) for i, one in enumerate(chart.series)),
        *(part for i, one in enumerate(named) for part in _legend(i, one.name, left, height)),
        viewBox=f"0 0 {width} {height + LEGEND_HEIGHT * math.ceil(len(named) / 2)}",
        role="img",
        aria_label=description(chart),
        class_="chart rows" if chart.rows else "chart",
    )


def svg_file(chart: Chart) -> str:
    """The chart as the text of an SVG file, with light colours."""
    style = Markup("svg { background: #fff }\n" + (files("glf.reporting") / "chart.css").read_text(encoding="utf-8"))
    head, _, rest = str(svg(chart)).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).partition(">")
    return f"{head}>{element('style', style)}{rest}\n"


def description(chart: Chart) -> str:
    """The content of a chart in words, for screen readers."""
    if chart.rows:
        return f"{chart.title}; the same numbers are in the table."
    parts = [
        f"{one.name or chart.title} from {one.points[0].y:.3g} to {one.points[-1].y:.3g}"
        for one in chart.series
        if one.points
    ]
    return f"{chart.title}, against {chart.x}: {'; '.join(parts)}"


def _ranges(chart: Chart) -> tuple[Range, Range]:
    points = chart.points()
    ends = [end for p in points for end in (p.low, p.high) if end is not None and math.isfinite(end)]
    xs, ys = [p.x for p in points], [p.y for p in points]
    if chart.rows:
        return axis_range([*xs, *ends, *([0.0] if chart.zero else [])]), (len(chart.rows) - 0.5, -0.5)
    low, high = axis_range([*ys, *ends, *([0.0] if chart.zero or chart.kind == "steps" else [])], chart.log_y)
    if chart.kind == "steps":
        low = 0.0
    half = (xs[1] - xs[0]) / 2 if chart.kind == "steps" and len(xs) > 1 else 0.0
    x_range = (min(xs) - half, max(xs) + half) if half else axis_range(xs, chart.log_x)
    return x_range, (low, high)


def _scale(ends: Range, start: float, stop: float, log: bool) -> Scale:
    low, high = (math.log(end) for end in ends) if log else ends

    def coordinate(value: float) -> float:
        value = math.log(max(value, 1e-300)) if log else value
        return start + (value - low) / ((high - low) or 1) * (stop - start)

    return coordinate


def _axes(
    chart: Chart, x_scale: Scale, y_scale: Scale, xs: Range, ys: Range, left: float, width: float, height: float
) -> list[Markup]:
    foot, right = height - BOTTOM, width - RIGHT
    parts: list[Markup] = []
    for number, label in enumerate(chart.rows):
        parts.append(element("text", label, x=left - 10, y=f"{y_scale(number) + 4:.1f}", text_anchor="end"))
    for tick in axis_ticks(*ys, chart.log_y) if not chart.rows else ():
        y = y_scale(tick)
        parts.append(element("path", d=f"M{left},{y:.1f}H{right}", class_="grid"))
        parts.append(element("text", tick_label(tick), x=left - 6, y=f"{y + 4:.1f}", text_anchor="end"))
    for tick in axis_ticks(*xs, chart.log_x):
        x = f"{x_scale(tick):.1f}"
        if chart.rows:
            parts.append(element("path", d=f"M{x},{TOP}V{foot}", class_="grid"))
        parts.append(element("text", tick_label(tick), x=x, y=foot + 14, text_anchor="middle"))
    parts.append(element("path", d=f"M{left},{foot}H{right}", class_="axis"))
    if chart.zero:
        d = f"M{x_scale(0):.1f},{TOP}V{foot}" if chart.rows else f"M{left},{y_scale(0):.1f}H{right}"
        parts.append(element("path", d=d, class_="zero"))
    parts.append(element("text", chart.x, x=right, y=foot + 29, text_anchor="end"))
    if chart.y:
        parts.append(element("text", chart.y, x=left, y=foot + 29))
    return parts


def _series(chart: Chart, number: int, series: Series, x_scale: Scale, y_scale: Scale) -> Markup:
    colour = f"c{number % COLOURS}"
    at = [(x_scale(p.x), y_scale(p.y)) for p in series.points]
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
    if chart.kind == "dots":
        return element("path", d="".join(f"M{x:.1f} {y:.1f}h0" for x, y in at), class_=f"dot {colour}")
    if chart.kind == "intervals":
        bars = ""
        for p in series.points:
            if p.low is not None and p.high is not None and math.isfinite(p.low) and math.isfinite(p.high):
                x, y = x_scale(p.x), y_scale(p.y)
                across = f"M{x_scale(p.low):.1f} {y:.1f}H{x_scale(p.high):.1f}"
                bars += across if chart.rows else f"M{x:.1f} {y_scale(p.low):.1f}V{y_scale(p.high):.1f}"
        joined = None if chart.rows else element("path", d=line, class_="thin")
        circles = [element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4) for x, y in at]
        hollow = " faint" if series.faint else ""
        return element("g", joined, element("path", d=bars), *circles, class_=f"interval {colour}{hollow}")
    if chart.kind == "steps":
        foot, half = y_scale(0), (at[1][0] - at[0][0]) / 2 if len(at) > 1 else 4
        d = f"M{at[0][0] - half:.1f} {foot:.1f}" + "".join(f"V{y:.1f}h{2 * half:.1f}" for _, y in at) + f"V{foot:.1f}Z"
        return element("path", d=d, class_=f"area {colour}")
    if len(at) == 1:
        return element("circle", cx=f"{at[0][0]:.1f}", cy=f"{at[0][1]:.1f}", r=3, class_=f"point {colour}")
    return element("path", d=line, class_=f"line {colour}")


def _legend(number: int, name: str, left: float, height: float) -> tuple[Markup, Markup]:
    x, y = left + number % 2 * 155, height + LEGEND_HEIGHT * (number // 2)
    swatch = element("path", d=f"M{x} {y + 6}h14", class_=f"line c{number % COLOURS}")
    return swatch, element("text", name if len(name) < 22 else name[:20] + "…", x=x + 20, y=y + 10)
