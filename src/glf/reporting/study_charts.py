"""Charts of a comparison: differences from the base with their intervals, and sensitivity to a setting."""

from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

from glf.reporting.chart import Chart, Point, Series
from glf.reporting.study_tables import COMPARED_METRICS, ONLINE_METRICS, Delta, deltas, gain_at, online_curves


def difference_charts(content: dict[str, Any]) -> list[Chart]:
    """A chart per data set and metric, with a row per method and variant."""
    groups: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    for one in deltas(content):
        groups[one.data, one.metric].append(one)
    charts = []
    for (data, metric), group in groups.items():
        series = []
        for name, significant in (("significant", True), ("n.s.", False)):
            points = tuple(
                Point(one.difference.mean, row, one.difference.low, one.difference.high)
                for row, one in enumerate(group)
                if one.difference.significant is significant
            )
            series.append(Series(name=name, points=points, faint=not significant))
        where = f"{Path(data).name}, {COMPARED_METRICS[metric]}"
        charts.append(
            Chart(
                key=f"deltas-{Path(data).stem}-{metric}",
                title=f"{where}: difference from {content['base']} in points, with 95 % intervals",
                series=tuple(series),
                kind="intervals",
                rows=tuple(f"{one.method} + {one.variant}" for one in group),
                x=f"difference from {content['base']} in points",
                zero=True,
            )
        )
    return charts


def sensitivity_charts(content: dict[str, Any]) -> list[Chart]:
    """Differences from the base against each setting that the variants sweep."""
    found = deltas(content)
    charts = []
    for (setting, values), data, metric in product(
        swept_settings(content["variants"]), content["data"], COMPARED_METRICS
    ):
        series = []
        for method in content["methods"]:
            points = [
                Point(values[one.variant], one.difference.mean, one.difference.low, one.difference.high)
                for one in found
                if (one.data, one.metric, one.method) == (data, metric, method) and one.variant in values
            ]
            if points:
                series.append(Series(name=method, points=tuple(sorted(points))))
        if series:
            where = f"{Path(data).name}, {COMPARED_METRICS[metric]}"
            low, high = min(values.values()), max(values.values())
            charts.append(
                Chart(
                    key=f"sensitivity-{setting}-{Path(data).stem}-{metric}",
                    title=f"{where}: difference from {content['base']} in points, by {setting}",
                    series=tuple(series),
                    kind="intervals",
                    x=setting,
                    log_x=low > 0 and high >= 8 * low,
                    zero=True,
                )
            )
    return charts


def progress_charts(content: dict[str, Any]) -> list[Chart]:
    """Differences from the base during training, as the online probe measured them: do gains grow, stay or vanish?"""
    charts = []
    for data, method, metric in product(content["data"], content["methods"], ONLINE_METRICS):
        curves = online_curves(content, data, method, metric)
        base = curves.pop(content["base"], {})
        shares = sorted({share for curve in base.values() for share, _ in curve})
        series = []
        for variant in [name for name in content["variants"] if name in curves]:
            gains = [(share, gain) for share in shares if (gain := gain_at(curves[variant], base, share))]
            points = tuple(Point(100 * share, gain.mean, gain.low, gain.high) for share, gain in gains)
            if points:
                series.append(Series(name=variant, points=points))
        if series:
            where = f"{Path(data).name}, {method}, {ONLINE_METRICS[metric]} of held-out training images"
            charts.append(
                Chart(
                    key=f"progress-{Path(data).stem}-{method}-{metric.replace('/', '-')}",
                    title=f"{where}: difference from {content['base']} in points, during training",
                    series=tuple(series),
                    kind="intervals",
                    x="% of training",
                    zero=True,
                )
            )
    return charts


def swept_settings(variants: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, float]]]:
    """Settings with at least three values among variants that are otherwise equal, and the value of each variant.

    >>> swept_settings({"none": {}, "a": {"nu": 0.1}, "b": {"nu": 1}, "c": {"nu": 10}})
    [('nu', {'a': 0.1, 'b': 1.0, 'c': 10.0})]
    """
    groups: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name, settings in variants.items():
        for key, value in settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = repr(sorted((k, v) for k, v in settings.items() if k != key))
                groups[key, others][name] = float(value)
    return [(key, values) for (key, _), values in groups.items() if len(set(values.values())) >= 3]
