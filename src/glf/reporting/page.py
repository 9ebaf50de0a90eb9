"""One self-contained page about a run, several of them, or a comparison: no network, no server, nothing to install."""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from glf.reporting import comparison_page, sections
from glf.reporting.chart import Chart, Series, curve
from glf.reporting.figures import write_comparison, write_run
from glf.reporting.galleries import Sheets
from glf.reporting.html import Markup, join, tag
from glf.reporting.load import Run, find
from glf.reporting.run_tables import table
from glf.reporting.svg import figure
from glf.reporting.verdict import CHIEF, verdict
from glf.result import write_file

WITH_PICTURES = 12  # runs on a page that have their galleries; of more, each has its own page
CURVES = 10  # runs in one chart


def write_report(place: Path, out: Path, figures: Path | None = None) -> int:
    """Write the page about what is below a directory, and its figures and numbers as files; returns how many runs."""
    runs, compared = find(place)
    sheets = Sheets()
    many = len(runs) + len(compared) > 1
    if not many:
        title, body = _alone(runs[0], sheets) if runs else _compared(*compared[0], sheets)
    else:
        title = f"{len(runs)} runs" + (f" and {len(compared)} comparisons" if compared else "")
        body = _together(title, runs, compared, sheets)
    write_file(out, document(title, body, sheets.style()))
    if figures is not None:
        for run in runs:
            write_run(figures / run.name if many else figures, run)
        for folder, content in compared:
            write_comparison(figures / folder.name if many else figures, content)
    return len(runs) + sum(len(content["runs"]) for _, content in compared)


def document(title: str, body: Markup, style: str) -> str:
    """A whole page. What it may load is nothing, and what it may run is its own script, told by its hash."""
    script = _own("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none';"
        " form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · glf report"),
        tag("style", Markup(_own("chart.css") + _own("page.css") + style)),
    )
    footer = tag(
        "footer",
        "Written by glf report from result.json, metrics.jsonl and artifacts/. docs/report.md says how to read it.",
    )
    skip = tag("a", "Skip to the content", href="#content", class_="skip")
    whole = tag("body", skip, tag("main", body, id="content"), footer, tag("script", Markup(script)))
    return f"<!doctype html>\n{tag('html', head, whole, lang='en')}\n"


def _own(name: str) -> str:
    return (files("glf.reporting") / name).read_text(encoding="utf-8")


def _alone(run: Run, sheets: Sheets) -> tuple[str, Markup]:
    found = sections.sections(run, sheets, pictures=True)
    head = (tag("p", f"glf run · {run.path}", class_="kicker"), tag("h1", run.title), sections.head(run))
    return run.title, join((*head, _contents(found), *(_section("h2", *one) for one in found)))


def _compared(folder: Path, content: dict[str, Any], sheets: Sheets) -> tuple[str, Markup]:
    found = comparison_page.sections(folder, content, sheets)
    count = len(content["runs"])
    head = (
        tag("p", f"glf comparison · {count} runs · {folder}", class_="kicker"),
        tag("h1", content["title"]),
        comparison_page.head(content),
    )
    return content["title"], join((*head, _contents(found), *(_section("h2", *one) for one in found)))


def _together(title: str, runs: list[Run], compared: list[tuple[Path, dict[str, Any]]], sheets: Sheets) -> Markup:
    pictures = len(runs) <= WITH_PICTURES
    parts: list[Markup | None] = [tag("h1", title), tag("h2", "Overview"), _overview(runs) if runs else None]
    if runs and not pictures:
        note = f"Galleries are left out with more than {WITH_PICTURES} runs: glf report on one of them has its own."
        parts.append(tag("p", note, class_="soft"))
    for number, run in enumerate(runs):
        found = sections.sections(run, sheets, pictures)
        inside = [sections.head(run), *(_section("h3", f"{key}-{number}", words, part) for key, words, part in found)]
        title_of = tag("summary", tag("span", f"{run.name}: {run.title}", role="heading", aria_level=2))
        parts.append(tag("details", title_of, *inside, class_="run", id=f"run-{number}", open=len(runs) <= 2))
    for number, (folder, content) in enumerate(compared):
        found = comparison_page.sections(folder, content, sheets)
        inside = [
            comparison_page.head(content),
            *(_section("h3", f"{key}-of-{number}", words, part) for key, words, part in found),
        ]
        title_of = tag("summary", tag("span", f"{folder.name}: {content['title']}", role="heading", aria_level=2))
        parts.append(tag("details", title_of, *inside, class_="run", open=True))
    return join(parts)


def _overview(runs: list[Run]) -> Markup:
    """A row for each run, and their kNN over time in one chart."""
    keys = [key for key in CHIEF if any(run.value(key) is not None for run in runs)]
    words = {
        key: run.evaluation["protocols"][key] for run in reversed(runs) for key in keys if run.value(key) is not None
    }
    head = ["run", "method", "data", "epochs", *(words[key] for key in keys), "effective rank", "verdict"]
    rows = [
        [
            tag("a", run.name, href=f"#run-{number}"),
            str(run.content.get("method", "-")),
            Path(str(run.content.get("data", {}).get("name", "-"))).name,
            str(run.content.get("config", {}).get("epochs", "-")),
            *(_share(run.value(key)) for key in keys),
            _rank(run),
            verdict(run)[1],
        ]
        for number, run in enumerate(runs)
    ]
    series = tuple(Series(name=run.name, points=curve(run.curves.get("val/knn", []))) for run in runs[:CURVES])
    chart = Chart(
        key="knn",
        title=f"kNN on held-out training images{', first ten runs' if len(runs) > CURVES else ''}",
        series=tuple(one for one in series if one.points),
    )
    return join((table("Accuracies in % on the test split", head, rows), figure(chart) if chart.series else None))


def _share(value: float | None) -> tuple[str, float] | str:
    return "-" if value is None else (f"{100 * value:.1f}", value)


def _rank(run: Run) -> tuple[str, float] | str:
    value = run.value("rank") or run.content.get("training", {}).get("val/rank")
    return "-" if value is None else (f"{value:.1f}", value)


def _contents(found: list[sections.Section]) -> Markup:
    links = [tag("li", tag("a", heading, href=f"#{key}")) for key, heading, _ in found]
    return tag("nav", tag("ul", *links), aria_label="Sections")


def _section(level: str, key: str, heading: str, body: Markup | None) -> Markup:
    return tag("section", tag(level, heading, id=f"{key}-title"), body, id=key, aria_labelledby=f"{key}-title")
