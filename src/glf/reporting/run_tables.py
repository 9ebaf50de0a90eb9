"""Tables of a run's evaluation, and the data of its map and galleries."""

from typing import Any, NamedTuple

from glf.reporting.chart import COLOURS
from glf.reporting.load import Run
from glf.reporting.study_tables import Row, TableCell
from glf.reporting.verdict import HEADLINE_ACCURACIES, run_verdict

# Theorem 1, keys of the evaluation in the order of its sum.
AS_PRINTED = ("info_nce", "deviation", "log_ratio", "bound", "cross_entropy", "slack")
AS_PROVED = ("info_nce", "variance", "log_ratio", "imbalance", "finite", "proved", "cross_entropy", "proved_slack")
MAP_WIDTH, MAP_MARGIN = 600, 14


def candidate_rows(run: Run) -> list[Row]:
    """A row per candidate of an adaptation, from frozen to adapted, below a header; empty for other runs."""
    candidates = run.adaptation.get("candidates", {})
    if not candidates:
        return []
    labelled = "knn" in candidates["frozen"]
    head = ["weights", *(["held-out k-NN"] if labelled else []), "view recall", "neighbours kept"]
    rows: list[Row] = [[*head, "effective rank", "uniformity"]]
    for name, values in candidates.items():
        rows.append(
            [
                candidate_name(run, name),
                *(
                    TableCell(f"{100 * values[key]:.1f} %", values[key])
                    for key in (("knn", "recall", "kept") if labelled else ("recall", "kept"))
                ),
                TableCell(f"{values['rank']:.1f}", values["rank"]),
                TableCell(f"{values['uniformity']:.2f}", values["uniformity"]),
            ]
        )
    return rows


def candidate_name(run: Run, name: str) -> str:
    """The name of a candidate in the table: that of the chosen one says so."""
    return f"{name} (chosen)" if name == run.adaptation["chosen"] else name


def accuracy_rows(run: Run) -> list[Row]:
    """A row per accuracy and a column per encoder, below a header; empty without accuracies."""
    protocols = run.evaluation.get("protocols", {})
    keys = [key for key in protocols if key in run.evaluation.get("percent", ())]
    if not keys:
        return []
    rows: list[Row] = [["protocol", *map(run.heading, run.encoders)]]
    for key in keys:
        cells = []
        for encoder in run.encoders:
            cell, interval = percent_cell(run.value(key, encoder)), run.interval(key, encoder)
            half = f" ± {50 * (interval[1] - interval[0]):.1f}" if interval else ""
            cells.append(cell._replace(text=cell.text + half))
        rows.append([protocols[key], *cells])
    return rows


def class_rows(run: Run) -> list[Row]:
    """A row per class and a column per accuracy of the trained encoder, below a header."""
    found, details = run.evaluation, run.evaluation.get("details", {}).get("trained", {})
    keys = [key for key in found.get("percent", ()) if "per_class" in details.get(key, {})]
    if not keys:
        return []
    rows: list[Row] = [["class", *(found["protocols"][key] for key in keys)]]
    for number, name in enumerate(found["classes"]):
        rows.append([name, *(percent_cell(details[key]["per_class"][number]) for key in keys)])
    return rows


def geometry_rows(run: Run) -> list[Row]:
    """A row per measure of geometry and a column per encoder, below a header."""
    found = run.evaluation
    others = {*found.get("percent", ()), *AS_PRINTED, *AS_PROVED, "chance"}
    measures = {key: name for key, name in found.get("protocols", {}).items() if key not in others}
    if not measures:
        return []
    rows: list[Row] = [["measure", *map(run.heading, run.encoders)]]
    return rows + [[name, *(plain_cell(run, key, one) for one in run.encoders)] for key, name in measures.items()]


def overview_rows(runs: list[Run]) -> list[Row]:
    """A row per run, below a header."""
    keys = [key for key in HEADLINE_ACCURACIES if any(run.value(key) is not None for run in runs)]
    names = {
        key: run.evaluation["protocols"][key] for run in reversed(runs) for key in keys if run.value(key) is not None
    }
    rows: list[Row] = [
        ["run", "method", "data", "epochs", *(names[key] for key in keys), "effective rank", "health"],
    ]
    for run in runs:
        rank = run.value("rank") or run.content.get("training", {}).get("val/rank")
        rows.append(
            [
                run.name,
                TableCell(str(run.content.get("method", "-"))),
                TableCell(run.data),
                TableCell(str(run.content.get("config", {}).get("epochs", "-"))),
                *(percent_cell(run.value(key)) for key in keys),
                TableCell("-") if rank is None else TableCell(f"{rank:.1f}", rank),
                TableCell(run_verdict(run).health),
            ]
        )
    return rows


def percent_cell(value: float | None) -> TableCell:
    return TableCell("-") if value is None else TableCell(f"{100 * value:.1f}", value)


def plain_cell(run: Run, key: str, encoder: str) -> TableCell:
    value = run.value(key, encoder)
    return TableCell("-") if value is None else TableCell(f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}", value)


class MapGroup(NamedTuple):
    """The dots of one class on the feature map."""

    name: str
    colour: int
    path: str  # the dots as SVG path data
    tiles: list[int]  # and their places on the sheet of thumbnails


def map_groups(found: dict[str, Any]) -> tuple[float, list[MapGroup]]:
    """Height of the feature map, and its dots by class or cluster."""
    top, bottom = max(y for _, y in found["points"]), min(y for _, y in found["points"])
    scale = MAP_WIDTH - 2 * MAP_MARGIN
    groups = []
    for group in sorted(set(found["group"])):
        name = found["groups"][group] if 0 <= group < len(found["groups"]) else "no label"
        tiles = [i for i, one in enumerate(found["group"]) if one == group]
        points = [found["points"][i] for i in tiles]
        path = "".join(f"M{MAP_MARGIN + x * scale:.1f} {MAP_MARGIN + (top - y) * scale:.1f}h0" for x, y in points)
        groups.append(MapGroup(name, group % COLOURS, path, tiles))
    return (top - bottom) * scale + 2 * MAP_MARGIN, groups


def map_legend(runs: list[tuple[str, Run]]) -> dict[str, int]:
    """Names of the groups on several maps, and their colours."""
    return {name: i % COLOURS for _, run in runs for i, name in enumerate(run.artifacts["map"]["groups"])}


class Sheets:
    """Sheets of thumbnails as background images of CSS classes; identical sheets are embedded once."""

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}

    def css_class(self, run: Run, name: str) -> str | None:
        url = run.sheet(name)
        return None if url is None else self.classes.setdefault(url, f"sheet{len(self.classes)}")

    def css(self) -> str:
        return "".join(f".{name}{{background-image:url({url})}}\n" for url, name in self.classes.items())


def tile_style(sheet: dict[str, int], tile: int) -> str:
    """CSS that shows one tile of a sheet."""
    columns, rows = sheet["columns"], -(-sheet["count"] // sheet["columns"])
    x = 100 * (tile % columns) / max(1, columns - 1)
    y = 100 * (tile // columns) / max(1, rows - 1)
    return f"background-size:{100 * columns}% {100 * rows}%;background-position:{x:.4g}% {y:.4g}%"
