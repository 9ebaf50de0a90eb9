"""A comparison: what is shown and what is not, in words, as a plot, as the paper's table, over a setting, as maps."""

from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from glf.reporting.chart import Chart, Point, Series
from glf.reporting.galleries import Sheets, feature_map
from glf.reporting.html import Markup, join, tag
from glf.reporting.load import Run
from glf.reporting.run_tables import table
from glf.reporting.sections import Section, charts
from glf.reporting.study_tables import METRICS, Delta, about, cells, deltas, spread
from glf.reporting.svg import COLOURS, figure
from glf.result import read_result
from glf.runfiles import RESULT

MAPS = 24  # side by side at most


def head(content: dict[str, Any]) -> Markup:
    """What was found, in words."""
    found = deltas(content)
    up, down = ([one for one in found if one.found.shown and (one.found.mean > 0) is more] for more in (True, False))
    words = [content["finding"]] if content.get("finding") else []
    words.append(
        f"Of {len(found)} differences to {content['base']}, {_count(len(up), 'gain')} and"
        f" {_count(len(down), 'loss', 'es')} are shown; {len(found) - len(up) - len(down)} are not (the 95 % interval"
        " includes zero, or there are fewer than three pairs)."
    )
    if up or down:
        most = max([*up, *down], key=lambda one: abs(one.found.mean))
        words.append(
            f"The largest: {most.method} + {most.variant}, {METRICS[most.metric]} on {_short(most.data)},"
            f" {_change(most)} points."
        )
    if content["failed"]:
        words.append(f"{_count(len(content['failed']), 'run')} failed.")
    mood = "good" if up and not down else "bad" if down and not up else "fair"
    return tag("p", " ".join(words), class_=f"verdict {mood}")


def sections(folder: Path, content: dict[str, Any], sheets: Sheets) -> list[Section]:
    """Everything about a comparison; what there is nothing to show for is left out."""
    found: list[Section] = [
        ("deltas", "Differences, paired by seed", _plots(content)),
        ("table", "Table", _tables(content)),
        ("sensitivity", "Sensitivity", charts(sensitivity(content))),
        ("maps", f"Maps: {content['base']} and the others", _maps(folder, content, sheets)),
        ("runs", "Runs", _runs(content)),
        ("failed", "Failed", _failed(content)),
        ("about", "How to read it", tag("p", about(content).replace("`", ""), class_="soft")),
    ]
    return [one for one in found if one[2]]


def forests(content: dict[str, Any]) -> list[Chart]:
    """A plot for each set of images and accuracy: a row for each method and variant."""
    groups: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    for one in deltas(content):
        groups[one.data, one.metric].append(one)
    return [
        Chart(
            key=f"deltas-{Path(data).stem}-{metric}",
            title=f"{_short(data)}, {METRICS[metric]}: points more than {content['base']}, with 95 % intervals",
            series=tuple(_dots(group, shown) for shown in (True, False)),
            kind="intervals",
            rows=tuple(f"{one.method} + {one.variant}" for one in group),
            x=f"points more than {content['base']}",
            zero=True,
        )
        for (data, metric), group in groups.items()
    ]


def _dots(group: list[Delta], shown: bool) -> Series:
    points = tuple(
        Point(one.found.mean, row, one.found.low, one.found.high)
        for row, one in enumerate(group)
        if one.found.shown is shown
    )
    return Series(name="shown" if shown else "not shown", points=points, faint=not shown)


def sensitivity(content: dict[str, Any]) -> list[Chart]:
    """The same differences against a setting that the variants are values of."""
    found = deltas(content)
    drawn = []
    for setting, values in swept(content["variants"]):
        for data in content["data"]:
            for metric, words in METRICS.items():
                series = tuple(
                    Series(
                        name=method,
                        points=tuple(
                            Point(values[one.variant], one.found.mean, one.found.low, one.found.high)
                            for one in sorted(found, key=lambda one: values.get(one.variant, 0))
                            if (one.data, one.metric, one.method) == (data, metric, method) and one.variant in values
                        ),
                    )
                    for method in content["methods"]
                )
                if any(one.points for one in series):
                    wide = min(values.values()) > 0 and max(values.values()) >= 8 * min(values.values())
                    drawn.append(
                        Chart(
                            key=f"sensitivity-{setting}-{Path(data).stem}-{metric}",
                            title=f"{_short(data)}, {words}: points more than {content['base']}, by {setting}",
                            series=tuple(one for one in series if one.points),
                            kind="intervals",
                            x=setting,
                            log_x=wide,
                            zero=True,
                        )
                    )
    return drawn


def swept(variants: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, float]]]:
    """Settings of which variants that are else alike have three values or more, and the value of each variant.

    >>> swept({"none": {}, "a": {"nu": 0.1}, "b": {"nu": 1}, "c": {"nu": 10}})
    [('nu', {'a': 0.1, 'b': 1.0, 'c': 10.0})]
    """
    groups: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name, settings in variants.items():
        for key, value in settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = repr(sorted((k, v) for k, v in settings.items() if k != key))
                groups[key, others][name] = float(value)
    return [(key, values) for (key, _), values in groups.items() if len(set(values.values())) >= 3]


def _plots(content: dict[str, Any]) -> Markup | None:
    drawn = [figure(chart) for chart in forests(content)]
    note = "A full dot is shown: its interval leaves zero out. A hollow one is not."
    return join((tag("p", note, class_="soft"), *drawn)) if drawn else None


def _tables(content: dict[str, Any]) -> Markup:
    """The paper's: a row for each method, the base's accuracy, and that of every variant with its difference."""
    found, base = cells(content), content["base"]
    by = {one[:4]: one for one in deltas(content)}
    versus = content.get("versus", {})
    beside = {one[:4]: one for one in deltas(content, versus)}
    others = [name for name in content["variants"] if name != base]
    names = [base, *(f"+ {name}" for name in others), *(f"{one} over {other}" for one, other in versus.items())]
    shown = []
    for data in content["data"]:
        for metric, words in METRICS.items():
            if not any(key[:2] == (data, metric) for key in found):
                continue
            rows: list[list[Any]] = []
            for name, seeds in content.get("references", {}).get(data, {}).items():
                values = {int(seed): 100 * row[metric] for seed, row in seeds.items() if metric in row}
                rows.append([name, _plain(values), *("" for _ in names[1:])])
            for method in content["methods"]:
                cells_of = [_cell(by.get((data, metric, method, name))) for name in others]
                cells_of += [_gain(beside.get((data, metric, method, name))) for name in versus]
                rows.append([method, _plain(found.get((data, metric, method, base), {})), *cells_of])
            caption = f"{_short(data)}, {words}: accuracy in %, mean ± standard deviation (seeds)"
            shown.append(table(caption, ["method", *names], rows))
    return join(shown)


def _plain(values: dict[int, float]) -> tuple[str, float] | str:
    return (spread(values), mean(values.values())) if values else "-"


def _cell(one: Delta | None) -> tuple[str, float] | str:
    return "-" if one is None else (join((f"{one.mean:.1f}", _marked(one))), one.mean)


def _gain(one: Delta | None) -> tuple[str, float] | str:
    return "-" if one is None else (_marked(one), one.found.mean)


def _marked(one: Delta) -> Markup:
    kind = ("up" if one.found.mean > 0 else "down") if one.found.shown else "not"
    said = _change(one) if one.found.shown else f"{_change(one)}, not shown"
    return tag("span", said, class_=f"delta {kind}")


def _change(one: Delta) -> str:
    interval = f" [{one.found.low:.2f}, {one.found.high:.2f}]" if one.found.pairs > 1 else ""
    return f"{one.found.mean:+.2f}{interval}"


def _maps(folder: Path, content: dict[str, Any], sheets: Sheets) -> Markup | None:
    """The base's map beside those of the variants: of each method and set of images the first seed that has them."""
    seeds = sorted({run["seed"] for run in content["runs"]})
    drawn: list[Markup] = []
    names: dict[str, int] = {}
    for one in sorted(content["runs"], key=lambda one: content["methods"].index(one["method"])):
        path = folder / one["path"] if "path" in one and one["seed"] == seeds[0] else None
        if path is None or not (path / RESULT).is_file() or len(drawn) == MAPS:
            continue
        run = Run(path, read_result(path))
        if (shown := feature_map(run, sheets)) is not None:
            names |= {name: group for group, name in enumerate(run.artifacts["map"]["groups"])}
            title = one["method"] if one["variant"] == content["base"] else f"{one['method']} + {one['variant']}"
            drawn.append(tag("figure", tag("figcaption", f"{title}, {_short(one['data'])}, seed {one['seed']}"), shown))
    if not drawn:
        return None
    keys = [tag("li", tag("span", class_=f"key c{group % COLOURS}"), name) for name, group in names.items()]
    note = "t-SNE of the same test images; it shows which neighbourhoods there are, not distances, sizes or densities."
    return join(
        (tag("p", note, class_="soft"), tag("ul", *keys, class_="legend flat"), tag("div", *drawn, class_="maps"))
    )


def _runs(content: dict[str, Any]) -> Markup | None:
    if not content["runs"]:
        return None
    keys = list(dict.fromkeys(key for run in content["runs"] for key in run["values"]))
    rows = [
        [
            f"{run['method']} + {run['variant']}, seed {run['seed']}, {_short(run['data'])}",
            *(_value(run["values"].get(key)) for key in keys),
        ]
        for run in content["runs"]
    ]
    shown = table("Every run as it was judged; accuracies are shares", ["run", *keys], rows)
    return tag("details", tag("summary", f"All {len(rows)} runs"), shown)


def _value(value: float | None) -> tuple[str, float] | str:
    return "-" if value is None else (f"{value:.4g}", value)


def _failed(content: dict[str, Any]) -> Markup | None:
    items = [tag("li", tag("code", name), f": {why}") for name, why in content["failed"].items()]
    return tag("ul", *items) if items else None


def _count(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{'' if number == 1 else plural}"


def _short(data: str) -> str:
    return Path(data).name
