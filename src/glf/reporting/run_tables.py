"""Tables of a run's evaluation: accuracies with intervals and references, classes, geometry, Theorem 1."""

from typing import Any

from glf.reporting.html import Markup, join, tag
from glf.reporting.load import Run

PRINTED = ("info_nce", "deviation", "log_ratio", "bound", "cross_entropy", "slack")
PROVED = ("info_nce", "variance", "log_ratio", "imbalance", "finite", "proved", "cross_entropy", "proved_slack")
SUMS = {"bound", "proved", "slack", "proved_slack"}


def table(caption: str, head: list[str], rows: list[list[Any]], marked: str | None = None) -> Markup:
    """Numbers in columns that the page's script sorts. A cell is text, or a pair of text and what it is sorted by."""
    top = tag("tr", *(tag("th", words, scope="col") for words in head))
    body = []
    for first, *cells in rows:
        found = []
        for cell in cells:
            text, value = cell if isinstance(cell, tuple) else (cell, None)
            found.append(tag("td", text, data_value=value))
        body.append(tag("tr", tag("th", first, scope="row"), *found, class_="marked" if first == marked else None))
    whole = tag("table", tag("caption", caption), tag("thead", top), tag("tbody", *body), class_="sortable")
    return tag("div", whole, class_="wide", tabindex=0, role="region", aria_label=caption)


def accuracies(run: Run) -> Markup | None:
    """A row for each encoder: the run itself, pixels, the untrained network, and whatever it was judged beside."""
    found = run.evaluation
    keys = [key for key in found.get("protocols", {}) if key in found.get("percent", ())]
    if not keys:
        return None
    caption = (
        f"Accuracy in % on {found['test']:,} images of {found['data']}, {found['split']} split, learning from"
        f" {found['train']:,}; ± is half of the 95 % interval over the test images"
    )
    rows = [[name, *(_accuracy(run, key, name) for key in keys)] for name in found["rows"]]
    return table(caption, ["encoder", *(found["protocols"][key] for key in keys)], rows, marked="trained")


def _accuracy(run: Run, key: str, column: str) -> tuple[str, float] | str:
    value, interval = run.value(key, column), run.interval(key, column)
    if value is None:
        return "-"
    half = f" ± {50 * (interval[1] - interval[0]):.1f}" if interval else ""
    return f"{100 * value:.1f}{half}", value


def by_class(run: Run) -> Markup | None:
    """How good the run is at each class."""
    found, details = run.evaluation, run.evaluation.get("details", {}).get("trained", {})
    keys = [key for key in found.get("percent", ()) if "per_class" in details.get(key, {})]
    if not keys:
        return None
    rows = []
    for number, name in enumerate(found["classes"]):
        values = [details[key]["per_class"][number] for key in keys]
        rows.append([name, *((f"{100 * value:.1f}", value) if value is not None else "-" for value in values)])
    shown = table("Accuracy in % of each class", ["class", *(found["protocols"][key] for key in keys)], rows)
    return tag("details", tag("summary", "Accuracy by class"), shown)


def measures(run: Run) -> Markup | None:
    """The shape of the features in numbers, for every encoder."""
    found = run.evaluation
    theory = {*PRINTED, *PROVED, "chance"}
    keys = [key for key in found.get("protocols", {}) if key not in found.get("percent", ()) and key not in theory]
    if not keys:
        return None
    rows = [[found["protocols"][key], *(_plain(run, key, name) for name in found["rows"])] for key in keys]
    return table(f"Geometry of the features, {found['split']} split", ["measure", *found["rows"]], rows)


def _plain(run: Run, key: str, column: str) -> tuple[str, float] | str:
    value = run.value(key, column)
    return "-" if value is None else (f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}", value)


def theorem(run: Run) -> Markup | None:
    """Both sides, as printed and as they can be proved."""
    value, chance = run.value("proved"), run.value("chance")
    if value is None or chance is None:
        return None
    columns, labels = list(run.evaluation["rows"]), run.evaluation["protocols"]
    parts = []
    for caption, keys in (("As printed, as far as it can be computed", PRINTED), ("As it can be proved", PROVED)):
        rows = []
        for key in keys:
            cells = [tag("td", _plain(run, key, name)[0]) for name in columns]
            term = tag("th", labels[key].strip(), scope="row")
            rows.append(tag("tr", term, *cells, class_="sum" if key in SUMS else None))
        top = tag("tr", tag("th", "term", scope="col"), *(tag("th", name, scope="col") for name in columns))
        whole = tag("table", tag("caption", caption), tag("thead", top), tag("tbody", *rows))
        parts.append(tag("div", whole, class_="wide", tabindex=0, role="region", aria_label=caption))
    says = "below" if value < chance else "above"
    words = (
        f"The right side that can be proved is {value:.2f} for the trained features, {says} log K = {chance:.2f}, which"
        f" constant features have: it {'bounds the error of a classifier' if value < chance else 'says nothing yet'}."
        " docs/equations.md has the proof."
    )
    return join((tag("p", words, class_="soft"), tag("div", *parts, class_="pair")))
