"""The charts of a page as SVG and PNG files, and its numbers as CSV and JSON."""

import csv
import io
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glf.reporting.chart import Chart, svg_file
from glf.reporting.few_labels import few_label_charts
from glf.reporting.load import Run
from glf.reporting.run_charts import entropy_chart, geometry_charts, map_charts, training_charts
from glf.reporting.study_charts import difference_charts, progress_charts, sensitivity_charts
from glf.reporting.study_tables import deltas, markdown
from glf.result import write_file

FIGURES_MARK = ".glf-figures"  # in a folder that only has figures of earlier reports


def check_matplotlib() -> None:
    """Raise if matplotlib, which draws the PNG files, is not installed."""
    if find_spec("matplotlib") is None:
        raise ValueError("--figures needs matplotlib for its PNG files: pip install 'glf[figures]'")


def check_figures_folder(folder: Path) -> None:
    """Refuse a folder with other files in it: figures have names that a user's files may have too."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--figures {folder} is not a folder: choose another name")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FIGURES_MARK).exists():
        raise ValueError(f"--figures {folder} has files that glf report did not write: choose a new or empty folder")


def write_run_figures(folder: Path, run: Run) -> None:
    """Write curves, spectra, histograms and the feature map of a run, and its evaluation as numbers."""
    charts = [
        *few_label_charts(run),
        *training_charts(run),
        *geometry_charts(run),
        entropy_chart(run),
        *map_charts(run),
    ]
    _write_charts(folder, [chart for chart in charts if chart])
    rows = [
        [name, key, protocol, run.value(key, name), *(run.interval(key, name) or ("", ""))]
        for name in run.encoders
        for key, protocol in run.evaluation["protocols"].items()
        if run.value(key, name) is not None
    ]
    _write_numbers(folder / "evaluation", ["encoder", "key", "protocol", "value", "low", "high"], rows)


def write_comparison_figures(folder: Path, content: dict[str, Any]) -> None:
    """Write the charts of a comparison, its runs and differences as numbers, and its tables as Markdown."""
    _write_charts(folder, [*difference_charts(content), *progress_charts(content), *sensitivity_charts(content)])
    runs = [
        [*(one[name] for name in ("data", "method", "variant", "seed")), key, value]
        for one in content["runs"]
        for key, value in one["values"].items()
    ]
    _write_numbers(folder / "runs", ["data", "method", "variant", "seed", "key", "value"], runs)
    rows = [[*one[:5], *one.difference, one.difference.significant] for one in deltas(content)]
    head = ["data", "metric", "method", "variant", "mean", "difference", "low", "high", "pairs", "significant"]
    _write_numbers(folder / "differences", head, rows)
    write_file(folder / "table.md", markdown(content))


def _write_charts(folder: Path, charts: list[Chart]) -> None:
    """Each chart as SVG, as PNG, and its points as CSV."""
    for chart in charts:
        if chart.points():
            name = re.sub(r"[^\w.-]+", "-", chart.key)
            write_file(folder / f"{name}.svg", svg_file(chart))
            write_file(folder / f"{name}.png", _png(chart))
            rows = [[one.name, p.x, p.y, p.low, p.high] for one in chart.series for p in one.points]
            write_file(folder / f"{name}.csv", _csv(["series", "x", "y", "low", "high"], rows))


def _png(chart: Chart) -> bytes:
    """The chart drawn by matplotlib, in its default style."""
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
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _write_numbers(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    write_file(path.with_suffix(".csv"), _csv(head, rows))
    records = [dict(zip(head, row, strict=True)) for row in rows]
    write_file(path.with_suffix(".json"), json.dumps(records, indent=1) + "\n")


def _csv(head: list[str], rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()
