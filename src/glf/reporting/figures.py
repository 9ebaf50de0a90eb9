"""The figures of a page as SVG and PNG, and its numbers as CSV and JSON, for papers."""

import csv
import io
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from glf.reporting import run_charts
from glf.reporting.chart import Chart, Point, Series
from glf.reporting.comparison_page import forests, sensitivity
from glf.reporting.load import Run
from glf.reporting.study_tables import deltas, markdown
from glf.reporting.svg import standalone, svg
from glf.result import write_file

Row = list[Any]


def write_run(folder: Path, run: Run) -> None:
    """Curves, spectra, histograms and the map of a run; its evaluation as a table of numbers."""
    entropies = run_charts.entropies(run)
    drawn = [*run_charts.training(run), *run_charts.shape(run), *([entropies] if entropies else []), *_map(run)]
    write_charts(folder, drawn)
    rows = [
        [name, key, words, run.value(key, name), *(run.interval(key, name) or ("", ""))]
        for name in run.evaluation.get("rows", {})
        for key, words in run.evaluation["protocols"].items()
        if run.value(key, name) is not None
    ]
    _numbers(folder / "evaluation", ["encoder", "key", "protocol", "value", "low", "high"], rows)


def write_comparison(folder: Path, content: dict[str, Any]) -> None:
    """Plots of differences and of sensitivity; every run, every difference, and the table in Markdown."""
    write_charts(folder, [*forests(content), *sensitivity(content)])
    runs = [
        [*(one[name] for name in ("data", "method", "variant", "seed")), key, value]
        for one in content["runs"]
        for key, value in one["values"].items()
    ]
    _numbers(folder / "runs", ["data", "method", "variant", "seed", "key", "value"], runs)
    rows = [[*one[:5], *one.found, one.found.shown] for one in deltas(content)]
    head = ["data", "metric", "method", "variant", "mean", "difference", "low", "high", "pairs", "shown"]
    _numbers(folder / "differences", head, rows)
    write_file(folder / "table.md", markdown(content))


def write_charts(folder: Path, drawn: list[Chart]) -> None:
    """Each chart as a drawing, as a picture, and as the points it is made of."""
    for chart in drawn:
        if chart.points():
            path = folder / re.sub(r"[^\w.-]+", "-", chart.key)
            write_file(path.with_name(f"{path.name}.svg"), drawing(chart))
            _picture(chart, path.with_name(f"{path.name}.png"))
            rows = [[one.name, p.x, p.y, p.low, p.high] for one in chart.series for p in one.points]
            write_file(path.with_name(f"{path.name}.csv"), _csv(["series", "x", "y", "low", "high"], rows))


def drawing(chart: Chart) -> str:
    """A chart as the text of an SVG file."""
    style = "svg { background: #fff }\n" + (files("glf.reporting") / "chart.css").read_text(encoding="utf-8")
    return standalone(svg(chart), style)


def _map(run: Run) -> list[Chart]:
    found = run.artifacts.get("map")
    if not found:
        return []
    series = tuple(
        Series(
            name=name, points=tuple(Point(*found["points"][i]) for i, one in enumerate(found["group"]) if one == group)
        )
        for group, name in enumerate(found["groups"])
    )
    drawn = tuple(one for one in series if one.points)
    return [Chart(key="map", title="t-SNE of the features", series=drawn, kind="dots", x="")]


def _picture(chart: Chart, path: Path) -> None:
    """By matplotlib, in its own style."""
    from matplotlib.figure import Figure

    rows = len(chart.rows)
    figure = Figure(figsize=(6, 1 + 0.3 * rows) if rows else (4, 3), layout="constrained", dpi=200)
    axes = figure.subplots()
    for one in chart.series:
        xs, ys = [p.x for p in one.points], [p.y for p in one.points]
        if chart.kind == "intervals":
            centre, along = (xs, "xerr") if rows else (ys, "yerr")
            ends = [(p.low, p.high) if p.low is not None and p.high is not None else (0, 0) for p in one.points]
            reach = [
                [c - low for c, (low, _) in zip(centre, ends, strict=True)],
                [high - c for c, (_, high) in zip(centre, ends, strict=True)],
            ]
            look: dict[str, Any] = {along: reach, "fmt": "o" if rows else "o-", "capsize": 3}
            axes.errorbar(xs, ys, label=one.name, mfc="white" if one.faint else None, **look)
        elif chart.kind == "steps":
            axes.fill_between(xs, ys, step="mid", alpha=0.4, label=one.name)
        else:
            axes.plot(xs, ys, "." if chart.kind == "dots" else "-", ms=2, label=one.name)
    if rows:
        axes.set_yticks(range(rows), chart.rows)
        axes.set_ylim(rows - 0.5, -0.5)
    if chart.zero:
        (axes.axvline if rows else axes.axhline)(0, color="black", lw=0.8, ls="--")
    axes.set(xlabel=chart.x, xscale="log" if chart.log_x else "linear")
    if chart.log_y:
        axes.set_yscale("log")
    if chart.kind == "dots":
        axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set_title(chart.title, fontsize=8, parse_math=False)
    if len(chart.series) > 1:
        axes.legend(fontsize=6)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_file(path, picture.getvalue())


def _numbers(path: Path, head: list[str], rows: list[Row]) -> None:
    write_file(path.with_suffix(".csv"), _csv(head, rows))
    as_objects = [dict(zip(head, row, strict=True)) for row in rows]
    write_file(path.with_suffix(".json"), json.dumps(as_objects, indent=1) + "\n")


def _csv(head: list[str], rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([head, *rows])
    return text.getvalue()
