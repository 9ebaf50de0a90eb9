"""Charts as data: what is drawn as SVG for the page and as PNG for papers, and what is written as numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["line", "steps", "dots", "intervals"]
POINTS = 300  # of a curve at most: more than the pixels it has


class Point(NamedTuple):
    """A place, and where there is one the interval of y, or of x for rows of differences."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name. ``faint`` are those of which too little is known."""

    name: str
    points: tuple[Point, ...]
    faint: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One pair of axes. ``key`` is the name of its files, ``rows`` the words of a vertical axis without numbers."""

    key: str
    title: str
    series: tuple[Series, ...]
    kind: Kind = "line"
    x: str = "step"
    y: str = ""
    log_x: bool = False
    log_y: bool = False
    rows: tuple[str, ...] = ()
    zero: bool = False  # a line where nothing differs

    def points(self) -> list[Point]:
        return [point for series in self.series for point in series.points]


def curve(values: Iterable[tuple[float, float]]) -> tuple[Point, ...]:
    """The finite values of a curve, every so many of them if there are more than can be seen; the last one stays.

    >>> curve([(1, 2.0), (2, math.nan), (3, 4.0)])
    (Point(x=1, y=2.0, low=None, high=None), Point(x=3, y=4.0, low=None, high=None))
    """
    found = [Point(x, y) for x, y in values if math.isfinite(x) and math.isfinite(y)]
    stride = math.ceil(len(found) / POINTS) or 1
    return tuple(found[(len(found) - 1) % stride :: stride])


def ticks(low: float, high: float, log: bool = False, count: int = 4) -> list[float]:
    """Round numbers within a range.

    >>> ticks(0.13, 0.94), ticks(0.002, 30, log=True)
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


def bounds(values: Iterable[float], log: bool = False) -> tuple[float, float]:
    """The range of an axis: what there is, with a little room."""
    found = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not found:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(found), max(found)
    if log:
        return (low / 1.15, high * 1.15)
    room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def short(value: float) -> str:
    """A number on an axis.

    >>> short(0.25), short(1500), short(1e-05), short(840)
    ('0.25', '1.5k', '1e-5', '840')
    """
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
