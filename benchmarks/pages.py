"""RESULTS.md and the README's table, written from what is stored in benchmarks/results: nothing is typed by hand.

python benchmarks/pages.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import all_methods
import machines

from glf.comparison.study import read_toml
from glf.reporting.chart import svg_file
from glf.reporting.study_charts import sensitivity_charts
from glf.reporting.study_tables import markdown, markdown_table, markdown_tables, study_notes
from glf.result import write_file

HERE = Path(__file__).parent
RESULTS, STUDIES = HERE / "results" / "studies", HERE / "studies"
MAPS = HERE / "results" / "feature_maps.svg"
MAPS_READ = (
    "Test images as t-SNE draws their features (`python benchmarks/feature_maps.py`, seed 0 of the headline)."
    " It shows neighbourhoods, not distances or densities; the accuracies above say more."
)
SWEEPS = ("nu", "upsilon", "effective_dim")  # which are drawn: Figures 5 and 6 of the paper, and how far rows look
FIGURES = HERE / "results" / "figures"
PRIOR = HERE / "results" / "prior.json"
PAGE, README = HERE / "RESULTS.md", HERE.parent / "README.md"
NOT_YET = "Not run yet."
START, END = "<!-- written by benchmarks/pages.py -->", "<!-- until here -->"


def stored() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every study that has been run, with the finding that stands in its file today.

    The headline first, then the others on the test split, then what was chosen on held-out images.
    """
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    for name in sorted(found, key=lambda name: (name != "headline", not _on_test(found[name]), name)):
        content, file = found[name], STUDIES / f"{name}.toml"
        if file.exists():
            content["finding"] = read_toml(file)["finding"]
        yield name, with_prior(content)


def _on_test(content: dict[str, Any]) -> bool:
    return any(how["split"] == "test" for how in content["evaluated"].values())


def with_prior(content: dict[str, Any]) -> dict[str, Any]:
    """A study with its prior among the references, where the prior was judged as the runs are."""
    if not PRIOR.exists():
        return content
    found = json.loads(PRIOR.read_text())
    data, names = found["data"], ("prior", "prior_size")
    asked = {name: {**content["settings"], **variant} for name, variant in content["variants"].items()}
    users = [name for name, one in asked.items() if all(one.get(key) == found[key] for key in names)]
    how = content["evaluated"].get(data, {})
    if not users or (how.get("split"), how.get("train")) != ("test", found["limit"]):
        return content
    rows = {seed: row for seed, row in found["rows"].items() if int(seed) < content["seeds"]}
    known_as = "prior" if len(users) == len(asked) else f"prior of {users[-1]}"
    return {**content, "references": {**content["references"], data: {**content["references"][data], known_as: rows}}}


def known_runs(study: str = "", machine: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Every run of every study that is stored, by what it is; those of one machine alone, if it is given.

    Of a run that two machines have made, a study keeps its own.
    """
    contents = dict(stored())
    known: dict[str, dict[str, Any]] = {}
    for name in sorted(contents, key=lambda name: name == study):
        for run in contents[name]["runs"]:
            if machine in (None, run["machine"]):
                beside = run["references"] or known.get(run["key"], run)["references"]
                known[run["key"]] = {**run, "references": beside}
    return known


def is_shown(content: dict[str, Any]) -> bool:
    """Whether somebody has looked at what a study has found so far, and has said so in its file."""
    return content["finding"] != NOT_YET


def runs_missing(content: dict[str, Any]) -> int:
    """How many runs a study still lacks."""
    cells = len(content["data"]) * len(content["methods"]) * len(content["variants"]) * content["seeds"]
    return cells - len(content["runs"])


def results() -> str:
    """The page of all results."""
    how = "Written by `python benchmarks/pages.py` from `benchmarks/results`; `make study STUDY=name` runs one."
    head = f"# Results\n\n{how}\n"
    studies = list(stored())
    parts = [section(name, content) for name, content in studies if is_shown(content)]
    begun = [f"{name} ({runs_missing(content)} runs to go)" for name, content in studies if not is_shown(content)]
    if begun:
        parts.append(f"Begun: {', '.join(begun)}.\n")
    if same := machines.section(content for _, content in studies):
        parts.append(same)
    if MAPS.exists():
        parts.append(f"## Feature maps\n\n{MAPS_READ}\n\n![t-SNE of test images' features]({MAPS.relative_to(HERE)})\n")
    return "\n".join([head, *parts, all_methods.page(json.loads(all_methods.OUT.read_text()))])


def section(name: str, content: dict[str, Any]) -> str:
    """A study, with the table and the figures that it has beside the usual ones; of one under way, what there is."""
    parts = [markdown({**content, "finding": said(content)})]
    if "also" in content:
        title, rows = content["also"]
        parts.append("\n".join([*markdown_table(rows, title), ""]))
    for path, (title, _) in figures(name, content).items():
        parts.append(f"*{title}*\n\n![{title}]({path.relative_to(HERE)})\n")
    return "\n".join(parts)


def figures(name: str, content: dict[str, Any]) -> dict[Path, tuple[str, str]]:
    """Where the drawings of a sweep that is shown lie, with their titles and their SVG."""
    if name not in SWEEPS or not is_shown(content):
        return {}
    return {FIGURES / f"{chart.key}.svg": (chart.title, svg_file(chart)) for chart in sensitivity_charts(content)}


def said(content: dict[str, Any]) -> str:
    """What was found, and how much of it is still to come."""
    missing = runs_missing(content)
    under_way = f" Under way: {missing} runs are to come; each cell says how many seeds it has." if missing else ""
    return f"{content['finding']}{under_way}"


def readme(text: str) -> str:
    """A text with the headline's table between its marks."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    content = dict(stored()).get("headline")
    if content is None or not is_shown(content):
        return text
    text = [before + START, said(content), "", *markdown_tables(content), study_notes(content), END]
    return "\n".join(text) + after


def store(name: str, content: dict[str, Any]) -> None:
    """Keep what a study has found so far."""
    RESULTS.mkdir(exist_ok=True)
    write_file(RESULTS / f"{name}.json", json.dumps(content, indent=1) + "\n")


def write() -> None:
    """The pages, and the figures that they show."""
    for name, content in stored():
        for path, (_, text) in figures(name, content).items():
            path.parent.mkdir(exist_ok=True)
            write_file(path, text)
    PAGE.write_text(results())
    README.write_text(readme(README.read_text()))


if __name__ == "__main__":
    write()
