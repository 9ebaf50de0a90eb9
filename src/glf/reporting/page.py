"""Write the report: one self-contained HTML page about a run, several runs, or a comparison.

The words are in templates/, one file per kind of page; this file gives them their data.
"""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError
from markupsafe import Markup
from rich.console import Console

from glf.config.evaluation import ReportConfig
from glf.files import check_output, is_page
from glf.reporting.chart import svg
from glf.reporting.few_labels import few_label_charts, label_factor
from glf.reporting.figures import (
    FIGURES_MARK,
    check_figures_folder,
    check_matplotlib,
    write_comparison_figures,
    write_run_figures,
)
from glf.reporting.load import find_runs
from glf.reporting.run_charts import entropy_chart, geometry_charts, knn_chart, training_charts
from glf.reporting.run_tables import (
    AS_PRINTED,
    AS_PROVED,
    MAP_WIDTH,
    Sheets,
    accuracy_rows,
    candidate_name,
    candidate_rows,
    class_rows,
    geometry_rows,
    map_groups,
    map_legend,
    overview_rows,
    plain_cell,
    tile_style,
)
from glf.reporting.study_charts import difference_charts, progress_charts, sensitivity_charts
from glf.reporting.study_tables import COMPARED_METRICS, EXPLANATION, every_run, study_provenance, study_tables
from glf.reporting.verdict import comparison_verdict, kept_weights, run_verdict
from glf.result import write_file
from glf.runfiles import PAGE_MARK
from glf.ui import counted, say

MAX_GALLERIES = 12  # runs on a page with galleries; with more, only the page of a single run has them


def report(config: ReportConfig, console: Console | None = None) -> Path:
    """Write the page of `glf report` and return its path; print it if a console is given."""
    count = write_report(config.runs, config.out, config.figures)
    if console is not None:
        say(console, f"{counted(count, 'run')} in {config.out.resolve().as_uri()}")
    return config.out


def write_report(directory: Path, out: Path, figures: Path | None = None) -> int:
    """Write the page about all runs below a directory, and optionally its figures and numbers; return the run count."""
    check_output(out, is_page)
    if figures is not None:
        check_matplotlib()
        check_figures_folder(figures)
    runs, comparisons = find_runs(directory)
    script = _own_file("page.js")
    page = _templates().get_template("page.html")
    try:
        html = page.render(
            runs=runs,
            comparisons=comparisons,
            sheets=Sheets(),
            css=Markup(_own_file("chart.css") + _own_file("page.css")),
            mark=Markup(PAGE_MARK),
            script=Markup(script),
            script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        )
    except (TypeError, LookupError, AttributeError, ArithmeticError, UndefinedError) as error:  # what no schema sees
        raise ValueError(
            f"a result.json, compare.json or artifacts/report.json below {directory} is damaged, or was edited"
            f" ({type(error).__name__}: {error}): create it again"
        ) from error
    write_file(out, html)
    if figures is not None:
        write_file(figures / FIGURES_MARK, "Written by glf report --figures.\n")
        several = len(runs) + len(comparisons) > 1
        for run in runs:
            write_run_figures(figures / run.name if several else figures, run)
        for comparison in comparisons:
            write_comparison_figures(figures / comparison.path.name if several else figures, comparison.content)
    return len(runs) + sum(len(comparison.content["runs"]) for comparison in comparisons)


def _own_file(name: str) -> str:
    return (files("glf.reporting") / name).read_text(encoding="utf-8")


def _templates() -> Environment:
    """The templates. Autoescaping keeps names from the data text; only Markup, made by `svg`, passes unescaped."""
    environment = Environment(
        loader=PackageLoader("glf.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": lambda share: f"{100 * share:.1f}",
        "thousands": lambda number: f"{number:,}",
        "basename": lambda path: Path(path).name,
        "counted": counted,
        "fill": lambda text, value: "" if value is None else text.format(value),
    }
    functions = (
        svg, run_verdict, comparison_verdict, kept_weights, training_charts, geometry_charts, entropy_chart, knn_chart,
        difference_charts, progress_charts, sensitivity_charts, accuracy_rows, candidate_name, candidate_rows,
        class_rows, geometry_rows, overview_rows, plain_cell, few_label_charts, label_factor,
        map_groups, map_legend, tile_style, study_tables, study_provenance, every_run,
    )  # fmt: skip
    environment.globals |= {function.__name__: function for function in functions}
    environment.globals |= {
        "max_galleries": MAX_GALLERIES,
        "map_width": MAP_WIDTH,
        "metric_names": COMPARED_METRICS,
        "explanation": EXPLANATION,
        "theorem_as_printed": AS_PRINTED,
        "theorem_as_proved": AS_PROVED,
    }
    return environment
