"""Tables of a comparison: accuracies and paired differences, for the page and as Markdown."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from glf.reporting.statistics import PairedDifference, paired_difference

COMPARED_METRICS = {
    "linear": "linear probe",
    "linear_top5": "linear probe, top-5",
    "logistic": "logistic probe",
    "knn5": "k-NN (k = 5)",
}
TABLE_METRICS = COMPARED_METRICS | {
    "logistic1": "1 label per class",
    "logistic10": "10 labels per class",
    "logistic100": "100 labels per class",
}
ONLINE_METRICS = {"val/linear": "linear accuracy", "val/knn": "k-NN accuracy"}  # of the online probe
PROGRESS = (0.1, 0.25, 0.5, 0.75, 1.0)  # shares of training in the tables of the online probe
PAPER_COLUMNS = 4  # base, + DCM, + LPM, + ADC
EXPLANATION = (
    "Mean ± standard deviation over seeds (number of seeds in parentheses). Differences are paired by seed (same"
    " initial weights, batches and augmentations) with 95 % t-intervals; n.s.: the interval contains 0 or there are"
    " fewer than three pairs."
)
Curve = Sequence[Sequence[float]]  # share of training, accuracy as a fraction
SeedValues = dict[int, float]  # seed -> accuracy in per cent


class TableCell(NamedTuple):
    """A table cell: its text, the number the page sorts it by, and a difference shown after or below the text."""

    text: str
    value: float | None = None
    difference: PairedDifference | None = None

    def __str__(self) -> str:
        """The cell in Markdown.

        >>> str(TableCell("52.0", 52.0, PairedDifference(1.0, 0.5, 1.5, 3)))
        '52.0, +1.00 [0.50, 1.50] (3)'
        """
        difference = f"{self.difference} ({self.difference.pairs})" if self.difference else ""
        return ", ".join(part for part in (self.text, difference) if part)


Row = list[str | TableCell]  # the first is the row's name; in a header all are names


class Table(NamedTuple):
    """A titled table. The first row is the header."""

    title: str
    rows: list[Row]


class Delta(NamedTuple):
    """A variant against the base or another variant, over the seeds that both have."""

    data: str
    metric: str
    method: str
    variant: str
    mean: float  # of the variant
    difference: PairedDifference


def seed_values(
    content: dict[str, Any], metrics: Iterable[str] = COMPARED_METRICS
) -> dict[tuple[str, str, str, str], SeedValues]:
    """Accuracies by (data, metric, method, variant)."""
    found: dict[tuple[str, str, str, str], SeedValues] = defaultdict(dict)
    for run in content["runs"]:
        for metric in metrics:
            if metric in run["values"]:
                key = (run["data"], metric, run["method"], run["variant"])
                found[key][run["seed"]] = 100 * run["values"][metric]
    return found


def deltas(
    content: dict[str, Any],
    versus: Mapping[str, str] | None = None,
    metrics: Iterable[str] = COMPARED_METRICS,
) -> list[Delta]:
    """Differences of every variant from the base, or of the keys of ``versus`` from its values, in table order."""
    found, base = seed_values(content, metrics), content["base"]
    if versus is None:
        versus = {name: base for name in content["variants"] if name != base}
    every = []
    for data, metric, method, (variant, other) in product(content["data"], metrics, content["methods"], versus.items()):
        ours, theirs = found.get((data, metric, method, variant), {}), found.get((data, metric, method, other), {})
        if seeds := sorted(ours.keys() & theirs.keys()):
            values = [ours[seed] for seed in seeds]
            difference = paired_difference([theirs[seed] for seed in seeds], values)
            every.append(Delta(data, metric, method, variant, mean(values), difference))
    return every


def study_tables(content: dict[str, Any]) -> list[Table]:
    """A table per data set and metric: the base's accuracy, and each variant's with its difference from the base.

    A single method with more variants than the paper's tables have columns gets one table per data set, with a row per
    variant and a column per metric. Tables of the online probe during training follow, where it was stored.
    """
    as_rows = len(content["methods"]) == 1 and len(content["variants"]) > PAPER_COLUMNS
    found, base, versus = seed_values(content, TABLE_METRICS), content["base"], content.get("versus", {})
    from_base = {one[:4]: one for one in deltas(content, None, TABLE_METRICS)}
    from_other = {one[:4]: one for one in deltas(content, versus, TABLE_METRICS)}
    others = [name for name in content["variants"] if name != base]
    head = ["method", base, *(f"+ {name}" for name in others), *(f"{one} over {two}" for one, two in versus.items())]
    tables = []
    for data in content["data"]:
        by_metric: dict[str, list[Row]] = {}
        measured = [metric for metric in TABLE_METRICS if any(key[:2] == (data, metric) for key in found)]
        for metric in measured or ("linear", "knn5"):
            rows: list[Row] = [[*head]]
            for name, seeds in content.get("references", {}).get(data, {}).items():
                values = {int(seed): 100 * row[metric] for seed, row in seeds.items() if metric in row}
                rows.append([f"({name})", mean_cell(values), *(TableCell("") for _ in head[2:])])
            for method in content["methods"]:
                key = (data, metric, method)
                row: Row = [method, mean_cell(found.get((*key, base), {}))]
                for name in others:
                    one = from_base.get((*key, name))
                    row.append(TableCell(f"{one.mean:.1f}", one.mean, one.difference) if one else TableCell("-"))
                for name in versus:
                    one = from_other.get((*key, name))
                    row.append(TableCell("", one.difference.mean, one.difference) if one else TableCell("-"))
                rows.append(row)
            by_metric[TABLE_METRICS[metric]] = rows
        short = Path(data).name
        if as_rows:
            tables.append(Table(short, _variants_as_rows(by_metric)))
        else:
            tables += [Table(f"{short}, {metric}", rows) for metric, rows in by_metric.items()]
    return [*tables, *_progress_tables(content)]


def online_curves(content: dict[str, Any], data: str, method: str, metric: str) -> dict[str, dict[int, Curve]]:
    """What the online probe measured during training, by variant and seed, of runs with several measurements."""
    found: dict[str, dict[int, Curve]] = {}
    for run in content["runs"]:
        curve = run.get("curves", {}).get(metric, ())
        if (run["data"], run["method"]) == (data, method) and len(curve) > 1:
            found.setdefault(run["variant"], {})[run["seed"]] = curve
    return found


def gain_at(curves: Mapping[int, Curve], base: Mapping[int, Curve], share: float) -> PairedDifference | None:
    """The paired difference of a variant from the base after a share of training, over the seeds that both have."""
    seeds = sorted(curves.keys() & base.keys())
    if not seeds:
        return None
    return paired_difference([_at(base[seed], share) for seed in seeds], [_at(curves[seed], share) for seed in seeds])


def _progress_tables(content: dict[str, Any]) -> list[Table]:
    """How differences develop: the online probe of the variants at several points of training, where it was stored."""
    tables = []
    for data, method, metric in product(content["data"], content["methods"], ONLINE_METRICS):
        curves = online_curves(content, data, method, metric)
        base = curves.get(content["base"], {})
        rows: list[Row] = [[method, *(f"{100 * share:.0f} % of training" for share in PROGRESS)]]
        for variant in [name for name in content["variants"] if name in curves]:
            cells = []
            for share in PROGRESS:
                values = mean_cell({seed: _at(curve, share) for seed, curve in curves[variant].items()})
                gain = None if variant == content["base"] else gain_at(curves[variant], base, share)
                cells.append(values._replace(difference=gain))
            rows.append([variant, *cells])
        if len(rows) > 1:
            title = f"{Path(data).name}, {ONLINE_METRICS[metric]} on held-out training images during training"
            tables.append(Table(title, rows))
    return tables


def _at(curve: Curve, share: float) -> float:
    """The accuracy in per cent at the measurement next to a share of training.

    >>> _at([(0.2, 0.3), (0.6, 0.4), (1.0, 0.5)], 0.5)
    40.0
    """
    return 100 * min(curve, key=lambda point: abs(point[0] - share))[1]


def _variants_as_rows(by_metric: Mapping[str, list[Row]]) -> list[Row]:
    """The tables of a single method as one: a row per reference and variant, a column per metric."""
    every = list(by_metric.values())
    head, *references, method = every[0]
    rows: list[Row] = [[method[0], *by_metric]]
    rows += [[row[0], *(one[i][1] for one in every)] for i, row in enumerate(references, 1)]
    return rows + [[name, *(one[-1][i] for one in every)] for i, name in enumerate(head) if i]


def mean_cell(values: SeedValues) -> TableCell:
    """Mean and standard deviation over seeds.

    >>> mean_cell({0: 50.0, 1: 52.0}).text
    '51.0 ± 1.4 (2)'
    """
    if not values:
        return TableCell("-")
    found = list(values.values())
    deviation = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
    return TableCell(f"{mean(found):.1f}{deviation} ({len(found)})", mean(found))


def every_run(runs: list[dict[str, Any]]) -> list[Row]:
    """A row per run with all its values, below a header."""
    keys = list(dict.fromkeys(key for run in runs for key in run["values"]))
    rows: list[Row] = [["run", *keys]]
    for run in runs:
        values = [run["values"].get(key) for key in keys]
        name = f"{run['method']} + {run['variant']}, seed {run['seed']}, {Path(run['data']).name}"
        rows.append(
            [
                name,
                *(TableCell("-") if value is None else TableCell(f"{value:.4g}", value) for value in values),
            ]
        )
    return rows


def markdown(content: dict[str, Any]) -> str:
    """A comparison as Markdown: title, finding, tables, how to read them, failed runs."""
    text = [f"## {content['title']}", ""]
    text += [f"{content['finding']}", ""] if content.get("finding") else []
    text += [*markdown_tables(content), study_notes(content), ""]
    text += [f"- failed: {name}: {why}" for name, why in content["failed"].items()]
    return "\n".join(text).rstrip() + "\n"


def markdown_tables(content: dict[str, Any]) -> list[str]:
    """All tables of a comparison as lines of Markdown."""
    return [line for title, rows in study_tables(content) for line in (*markdown_table(rows, title), "")]


def markdown_table(rows: Sequence[Sequence[object]], title: str = "") -> list[str]:
    """A table as lines of Markdown, below its title; the first row is the header."""
    head, *body = (f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)
    return [*([f"**{title}**", ""] if title else []), head, "|" + "---|" * len(rows[0]), *body]


def study_notes(content: dict[str, Any]) -> str:
    """How to read the tables, and their provenance."""
    return f"{EXPLANATION} {study_provenance(content)}"


def study_provenance(content: dict[str, Any]) -> str:
    """Command, machines, version of torch, and protocols of a comparison."""
    machines = [run["machine"] for run in content["runs"]] or [content["machine"]]
    names = dict.fromkeys(f"{machine['processor']}, {machine['cores']} cores" for machine in machines)
    text = f"`{content['command']}`; {' and '.join(names)}; torch {content['versions']['torch']}."
    for data, how in content["evaluated"].items():
        protocols = ", ".join(how["protocols"][name] for name in TABLE_METRICS if name in how["protocols"])
        text += f" {data}: {protocols}; probes trained on {how['train']:,} images and evaluated on {how['test']:,}"
        text += f" (split: {how['split']})."
    return text
