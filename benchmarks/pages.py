"""Write RESULTS.md and the table of the README from the stored results: python benchmarks/pages.py"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import all_methods
import machines

from glf.comparison.study import Study, from_file, read_toml
from glf.measure.intervals import t_interval
from glf.methods import METHODS
from glf.reporting.chart import svg_file
from glf.reporting.study_charts import sensitivity_charts
from glf.reporting.study_tables import Delta, deltas, markdown, markdown_table, seed_values
from glf.result import write_file

HERE = Path(__file__).parent
RESULTS, STUDIES = HERE / "results" / "studies", HERE / "studies"
MAPS = HERE / "results" / "feature_maps.svg"
MAPS_NOTE = (
    "t-SNE of the test images' features (`python benchmarks/feature_maps.py`, seed 0 of the headline study). It shows"
    " neighbourhoods, not distances or densities; the accuracies above say more."
)
SCALES = ("tiny", "night")  # what two cores can do; a study has one of them
SWEEPS = ("nu", "upsilon", "effective_dim")  # drawn as figures; the first two are Figures 5 and 6 of the paper
FIGURES = HERE / "results" / "figures"
PRIOR = HERE / "results" / "prior.json"
PAGE, README = HERE / "RESULTS.md", HERE.parent / "README.md"
NOT_YET = "Not run yet."
DEMO_METRICS = {
    "knn5": "k-NN",
    "linear": "linear probe",
    "logistic1": "1 label per class",
    "logistic10": "10 labels",
    "logistic100": "100 labels",
}
DEMO_ROWS = {"pixels": "raw pixels", "untrained": "untrained network"}
START, END = "<!-- {}: written by benchmarks/pages.py -->", "<!-- until here -->"  # around the tables of the README


def study_of(name: str) -> Study:
    """The study of this name, at the scale at which it is stored."""
    path = STUDIES / f"{name}.toml"
    scales = read_toml(path).get("scales", {})
    return from_file(path, next((scale for scale in SCALES if scale in scales), SCALES[0]))


def stored() -> Iterator[tuple[str, dict[str, Any]]]:
    """Stored studies with their present findings: the headline, those on the test split, those on held-out images."""
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    for name in sorted(found, key=lambda name: (name != "headline", not _on_test(found[name]), name)):
        content, file = found[name], STUDIES / f"{name}.toml"
        if file.exists():
            content["finding"] = read_toml(file)["finding"]
        yield name, with_prior(content)


def _on_test(content: dict[str, Any]) -> bool:
    return any(how["split"] == "test" for how in content["evaluated"].values())


def with_prior(content: dict[str, Any]) -> dict[str, Any]:
    """Add the prior to the references of a study, if it was evaluated in the same way as the runs."""
    if not PRIOR.exists():
        return content
    found = json.loads(PRIOR.read_text())
    data, names = found["data"], ("prior", "prior_size")
    asked = {name: {**content["settings"], **variant} for name, variant in content["variants"].items()}
    users = [name for name, one in asked.items() if all(one.get(key) == found[key] for key in names)]
    how = content["evaluated"].get(data, {})
    measured = found["rows"].get(str(how.get("train")))  # with as many labelled images
    if not users or not measured or how["split"] != "test":
        return content
    rows = {seed: row for seed, row in measured.items() if int(seed) < content["seeds"]}
    known_as = "prior" if len(users) == len(asked) else f"prior of {users[-1]}"
    return {**content, "references": {**content["references"], data: {**content["references"][data], known_as: rows}}}


def known_runs(study: str = "", machine: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Stored runs of all studies by run key, or those of one machine only.

    If two machines have made the same run, a study keeps its own.
    """
    contents = dict(stored())
    known: dict[str, dict[str, Any]] = {}
    for name in sorted(contents, key=lambda name: name == study):
        for run in contents[name]["runs"]:
            if machine in (None, run["machine"]):
                references = run["references"] or known.get(run["key"], run)["references"]
                known[run["key"]] = {**run, "references": references}
    return known


def is_shown(content: dict[str, Any]) -> bool:
    """Whether the file of the study states a finding."""
    return content["finding"] != NOT_YET


def runs_missing(content: dict[str, Any]) -> int:
    """Number of runs that a study still lacks."""
    cells = len(content["data"]) * len(content["methods"]) * len(content["variants"]) * content["seeds"]
    return cells - len(content["runs"])


def results() -> str:
    """The content of RESULTS.md."""
    how = "Written by `python benchmarks/pages.py` from `benchmarks/results`; `make study STUDY=name` runs a study."
    head = f"# Results\n\n{how}\n"
    studies = list(stored())
    parts = [section(name, content) for name, content in studies if is_shown(content)]
    begun = [f"{name} ({runs_missing(content)} runs left)" for name, content in studies if not is_shown(content)]
    if begun:
        parts.append(f"Begun: {', '.join(begun)}.\n")
    if same := machines.section(content for _, content in studies):
        parts.append(same)
    if MAPS.exists():
        parts.append(f"## Feature maps\n\n{MAPS_NOTE}\n\n![t-SNE of test images' features]({MAPS.relative_to(HERE)})\n")
    return "\n".join([head, *parts, all_methods.page(json.loads(all_methods.OUT.read_text()))])


def section(name: str, content: dict[str, Any]) -> str:
    """The section of a study, with its additional table and figures."""
    parts = [markdown({**content, "finding": said(content)})]
    if "also" in content:
        title, rows = content["also"]
        parts.append("\n".join([*markdown_table(rows, title), ""]))
    for path, (title, _) in figures(name, content).items():
        parts.append(f"*{title}*\n\n![{title}]({path.relative_to(HERE)})\n")
    return "\n".join(parts)


def figures(name: str, content: dict[str, Any]) -> dict[Path, tuple[str, str]]:
    """Figures of a sweep: paths with titles and SVG."""
    if name not in SWEEPS or not is_shown(content):
        return {}
    return {FIGURES / f"{chart.key}.svg": (chart.title, svg_file(chart)) for chart in sensitivity_charts(content)}


def said(content: dict[str, Any]) -> str:
    """The finding, and the number of runs that are still missing."""
    missing = runs_missing(content)
    under_way = f" Under way: {missing} runs are missing; each cell states its number of seeds." if missing else ""
    return f"{content['finding']}{under_way}"


def readme(text: str) -> str:
    """Replace the tables of the README between their marks."""
    contents = dict(stored())
    for name, table in (("headline", compact), ("demo", demo)):
        before, mark, rest = text.partition(START.format(name))
        if mark and name in contents and is_shown(contents[name]):
            text = "\n".join([before + mark, "", *table(contents[name]), "", END]) + rest.partition(END)[2]
    return text


def compact(content: dict[str, Any], metric: str = "linear") -> list[str]:
    """A row per variant and a column per method; differences that are not significant have no sign."""
    found = {one[2:4]: one for one in deltas(content) if one.metric == metric}
    base = {method: mean(seeds.values()) for (_, m, method, variant), seeds in seed_values(content).items()
            if (m, variant) == (metric, content["base"])}  # fmt: skip
    rows: list[list[str]] = [["", *(METHODS[method].title for method in content["methods"])]]
    rows.append(["without", *(f"{base[method]:.1f}" for method in content["methods"])])
    for variant in content["variants"]:
        cells = [cell(found[method, variant]) for method in content["methods"] if (method, variant) in found]
        rows += [[f"+ {variant.upper()}", *cells]] if cells else []
    return markdown_table(rows)


def cell(one: Delta) -> str:
    """The mean of a variant, and its difference from the base with half of the interval."""
    half = (one.difference.high - one.difference.low) / 2
    change = f"{one.difference.mean:+.1f} ± {half:.1f}" if one.difference.significant else "n.s."
    return f"{one.mean:.1f} ({change})"


def demo_values(content: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Accuracies in % of the demo's encoders over the seeds, by encoder and metric."""
    (data,), (method,) = content["data"], content["methods"]
    metrics = list(content["evaluated"][data]["protocols"])
    values = {
        reference: {metric: [100 * row[metric] for row in seeds.values()] for metric in metrics}
        for reference, seeds in content["references"][data].items()
    }
    found = seed_values(content, metrics)
    for variant in content["variants"]:
        name = method if variant == content["base"] else f"{method}+{variant}"
        values[name] = {metric: [*found[data, metric, method, variant].values()] for metric in metrics}
    return values


def demo(content: dict[str, Any]) -> list[str]:
    """A row per encoder and a column per accuracy: mean and half of the 95 % t-interval over seeds."""
    rows = [["", *DEMO_METRICS.values()]]
    for name, values in demo_values(content).items():
        rows.append([DEMO_ROWS.get(name, name), *(with_interval(values[metric]) for metric in DEMO_METRICS)])
    found = {one.metric: one.difference for one in deltas(content, None, list(DEMO_METRICS))}
    changes = [f"{one.mean:+.1f} ± {one.high - one.mean:.1f}" for one in map(found.get, DEMO_METRICS) if one]
    rows.append(["difference, paired", *changes])
    return markdown_table(rows)


def with_interval(values: list[float]) -> str:
    """Mean and half of the 95 % t-interval, if the values differ."""
    mean, _, high = t_interval(values)
    return f"{mean:.1f} ± {high - mean:.1f}" if high > mean else f"{mean:.1f}"


def store(name: str, content: dict[str, Any]) -> None:
    """Store the results of a study."""
    RESULTS.mkdir(exist_ok=True)
    write_file(RESULTS / f"{name}.json", json.dumps(content, indent=1) + "\n")


def write() -> None:
    """Write the pages and their figures."""
    for name, content in stored():
        for path, (_, text) in figures(name, content).items():
            path.parent.mkdir(exist_ok=True)
            write_file(path, text)
    PAGE.write_text(results())
    README.write_text(readme(README.read_text()))


if __name__ == "__main__":
    write()
