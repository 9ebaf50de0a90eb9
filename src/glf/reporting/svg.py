"""Charts as inline SVG: no font, no script, no network; colours are the page's, so that they suit light and dark."""

import math
from collections.abc import Callable

from glf.reporting.chart import Chart, Point, Series, bounds, short, ticks
from glf.reporting.html import Markup, join, tag

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 210, 46, 10, 8, 36
WIDE, ROW, LABEL, LINE = (
    560,
    22,
    150,
    16,
)  # of a plot of rows: its width, a row's height, its words' width; a legend's line
COLOURS = 10
Axes = Callable[[float], float]


def svg(chart: Chart) -> Markup:
    """The chart; what it shows is said in words too."""
    if not chart.points():
        return tag("p", f"{chart.title}: no finite values", class_="soft")
    rows = bool(chart.rows)
    left, width = (LABEL, WIDE) if rows else (LEFT, WIDTH)
    height = TOP + BOTTOM + ROW * len(chart.rows) if rows else HEIGHT
    named = [series for series in chart.series if series.name] if len(chart.series) > 1 and not rows else []
    x_range, y_range = _ranges(chart)
    across = _scale(x_range, left, width - RIGHT, chart.log_x)
    up = _scale(y_range, height - BOTTOM, TOP, chart.log_y)
    body = [
        *_axes(chart, across, up, x_range, y_range, left, width, height),
        *(_drawn(chart, i, one, across, up) for i, one in enumerate(chart.series)),
        *(_legend(i, one.name, left, height) for i, one in enumerate(named)),
    ]
    total = height + LINE * math.ceil(len(named) / 2)
    return tag(
        "svg",
        *body,
        viewBox=f"0 0 {width} {total}",
        role="img",
        aria_label=described(chart),
        class_="chart rows" if rows else "chart",
    )


def figure(chart: Chart) -> Markup:
    """The chart below its title; one with rows may be wider than the screen."""
    drawn = svg(chart)
    if chart.rows:
        drawn = tag("div", drawn, class_="wide", tabindex=0, role="region", aria_label=chart.title)
    return tag("figure", tag("figcaption", chart.title), drawn)


def described(chart: Chart) -> str:
    """What a chart shows, for those who do not see it."""
    if chart.rows:
        return f"{chart.title}; the same numbers are in the table."
    parts = [
        f"{one.name or chart.title} from {one.points[0].y:.3g} to {one.points[-1].y:.3g}"
        for one in chart.series
        if one.points
    ]
    return f"{chart.title}, against {chart.x}: {'; '.join(parts)}"


def standalone(drawing: Markup, style: str) -> str:
    """The same as a file of its own, in the colours of light paper."""
    opened = drawing.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    head, _, rest = opened.partition(">")
    return f"{head}>{tag('style', Markup(style))}{rest}\n"


def _ranges(chart: Chart) -> tuple[tuple[float, float], tuple[float, float]]:
    points = chart.points()
    ends = [end for p in points for end in (p.low, p.high) if end is not None and math.isfinite(end)]
    xs, ys = [p.x for p in points], [p.y for p in points]
    if chart.rows:
        return bounds([*xs, *ends, *([0.0] if chart.zero else [])]), (len(chart.rows) - 0.5, -0.5)
    low, high = bounds([*ys, *ends, *([0.0] if chart.zero or chart.kind == "steps" else [])], chart.log_y)
    if chart.kind == "steps":
        low = 0.0
    half = (xs[1] - xs[0]) / 2 if chart.kind == "steps" and len(xs) > 1 else 0.0
    x_range = (min(xs) - half, max(xs) + half) if half else bounds(xs, chart.log_x)
    return x_range, (low, high)


def _scale(ends: tuple[float, float], start: float, stop: float, log: bool) -> Axes:
    low, high = (math.log(end) for end in ends) if log else ends

    def place(value: float) -> float:
        value = math.log(max(value, 1e-300)) if log else value
        return start + (value - low) / ((high - low) or 1) * (stop - start)

    return place


def _axes(
    chart: Chart,
    across: Axes,
    up: Axes,
    xs: tuple[float, float],
    ys: tuple[float, float],
    left: float,
    width: float,
    height: float,
) -> list[Markup]:
    foot = height - BOTTOM
    parts: list[Markup | None] = []
    if chart.rows:
        for number, words in enumerate(chart.rows):
            parts.append(tag("text", words, x=left - 10, y=f"{up(number) + 4:.1f}", text_anchor="end"))
    else:
        for tick in ticks(*ys, chart.log_y):
            at = f"{up(tick):.1f}"
            parts.append(tag("path", d=f"M{left},{at}H{width - RIGHT}", class_="grid"))
            parts.append(tag("text", short(tick), x=left - 6, y=f"{up(tick) + 4:.1f}", text_anchor="end"))
    for tick in ticks(*xs, chart.log_x):
        at = f"{across(tick):.1f}"
        parts.append(tag("path", d=f"M{at},{TOP}V{foot}", class_="grid") if chart.rows else None)
        parts.append(tag("text", short(tick), x=at, y=foot + 14, text_anchor="middle"))
    parts.append(tag("path", d=f"M{left},{foot}H{width - RIGHT}", class_="axis"))
    if chart.zero:
        d = f"M{across(0):.1f},{TOP}V{foot}" if chart.rows else f"M{left},{up(0):.1f}H{width - RIGHT}"
        parts.append(tag("path", d=d, class_="zero"))
    parts.append(tag("text", chart.x, x=width - RIGHT, y=foot + 29, text_anchor="end"))
    if chart.y:
        parts.append(tag("text", chart.y, x=left, y=foot + 29))
    return [part for part in parts if part is not None]


def _drawn(chart: Chart, number: int, series: Series, across: Axes, up: Axes) -> Markup:
    colour = f"c{number % COLOURS}"
    at = [(across(p.x), up(p.y)) for p in series.points]
    if chart.kind == "dots":
        return tag("path", d="".join(f"M{x:.1f} {y:.1f}h0" for x, y in at), class_=f"dot {colour}")
    if chart.kind == "intervals":
        bars = "".join(_bar(chart, p, across, up) for p in series.points if p.low is not None)
        join_up = "" if chart.rows else tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at), class_="thin")
        hollow = " faint" if series.faint else ""
        circles = [tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4) for x, y in at]
        return tag("g", join_up or None, tag("path", d=bars), *circles, class_=f"interval {colour}{hollow}")
    if chart.kind == "steps":
        foot, half = up(0), (at[1][0] - at[0][0]) / 2 if len(at) > 1 else 4
        d = f"M{at[0][0] - half:.1f} {foot:.1f}" + "".join(f"V{y:.1f}h{2 * half:.1f}" for _, y in at) + f"V{foot:.1f}Z"
        return tag("path", d=d, class_=f"area {colour}")
    if len(at) == 1:
        return tag("circle", cx=f"{at[0][0]:.1f}", cy=f"{at[0][1]:.1f}", r=3, class_=f"point {colour}")
    return tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at), class_=f"line {colour}")


def _bar(chart: Chart, p: Point, across: Axes, up: Axes) -> str:
    assert p.low is not None
    assert p.high is not None
    if not (math.isfinite(p.low) and math.isfinite(p.high)):  # a single pair has no interval
        return ""
    if chart.rows:
        return f"M{across(p.low):.1f} {up(p.y):.1f}H{across(p.high):.1f}"
    return f"M{across(p.x):.1f} {up(p.low):.1f}V{up(p.high):.1f}"


def _legend(number: int, name: str, left: float, height: float) -> Markup:
    x, y = left + number % 2 * 155, height + LINE * (number // 2)
    swatch = tag("path", d=f"M{x} {y + 6}h14", class_=f"line c{number % COLOURS}")
    return join((swatch, tag("text", name if len(name) < 22 else name[:20] + "…", x=x + 20, y=y + 10)))
