"""glf compare: run the missing cells, and update the table and the report after each."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glf.comparison.processes import run_all
from glf.comparison.runs import evaluated_result, reference_key, run_key
from glf.comparison.study import Cell, Study, from_flags
from glf.config.evaluation import CompareConfig
from glf.files import check_output, is_page
from glf.health.examine import read_metrics
from glf.reporting.page import write_report
from glf.reporting.study_tables import ONLINE_METRICS, markdown
from glf.result import RESULT_SCHEMA, load_json, provenance, write_file
from glf.runfiles import COMPARISON, METRICS, PAGE, RESULT, TABLE
from glf.schema import ComparisonResult
from glf.ui import progress, say

Record = dict[str, Any]  # the results of one run, as stored in compare.json
REFERENCES = ("pixels", "untrained", "frozen")
PROTOCOL_KEYS = ("protocols", "split", "train", "test")
_NONE: Mapping[str, Record] = MappingProxyType({})


def compare(config: CompareConfig, console: Console | None = None) -> dict[str, Any]:
    """Train and evaluate the runs that are missing; return the content of compare.json."""
    content = conduct(from_flags(config), config.out, config.jobs, console)
    if content["failed"]:
        raise ValueError(f"{len(content['failed'])} runs failed; results of the others: {config.out / TABLE}")
    return content


def conduct(
    study: Study,
    out: Path,
    jobs: int | None = None,
    console: Console | None = None,
    known: Mapping[str, Record] = _NONE,
    store: Callable[[dict[str, Any]], None] = lambda content: None,
    references: bool = True,
) -> dict[str, Any]:
    """Run a study and return the content of compare.json; failed runs are listed in it.

    ``known`` holds records of other studies or machines by run key; these runs are not repeated. ``store`` is called
    with the content after each run. ``references=False`` skips raw pixels and the untrained network.
    """
    console = console or Console()
    check_directory(out)
    cells = list(study.cells())
    missing = [cell for cell in cells if run_key(*study.configs(cell)) not in known]
    # References do not depend on the method: evaluate them once per data set and seed, with the first method.
    first = (study.methods[0], next(iter(study.variants)))
    known_references = _known_references(known)
    with_references = {
        cell
        for cell in missing
        if references
        and (cell.method, cell.variant) == first
        and reference_key(*study.configs(cell)) not in known_references
    }
    say(console, f"{study.title}: {len(cells)} runs in {out}, {len(cells) - len(missing)} already known")
    if study.cost:
        say(console, study.cost)
    failed: dict[str, str] = {}
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with progress(*columns, console=console) as bar:
        task = bar.add_task("runs", total=len(missing))

        def finished(cell: Cell, failure: str | None) -> None:
            if failure is None:
                found = record(study, cell, out)
                assert found is not None, "its process has evaluated it"
                text = "  ".join(f"{name} {value:.4g}" for name, value in found["values"].items())
            else:
                failed[str(cell.path)] = failure
                text = f"failed: {failure}"
            bar.advance(task)
            say(bar.console, f"{cell.path}  {text}")
            store(write(study, out, failed, known))

        run_all(study, missing, out, jobs, finished, with_references)
    content = write(study, out, failed, known)
    store(content)
    say(console, *markdown(content).split("\n"))
    return content


def check_directory(out: Path) -> None:
    """Refuse a directory with files of these names that no comparison has written."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a directory: choose another --out")
    if (out / COMPARISON).exists():
        load_json(out / COMPARISON, ComparisonResult)  # raises for a file of another program
        check_output(out / PAGE, is_page)
    elif taken := [name for name in (TABLE, PAGE, RESULT) if (out / name).exists()]:
        raise ValueError(f"{out / taken[0]} was not written by a comparison: choose another --out")


def _known_references(known: Mapping[str, Record]) -> dict[str, Any]:
    return {run["reference"]: run["references"] for run in known.values() if run["references"]}


def record(study: Study, cell: Cell, out: Path) -> Record | None:
    """Return the results of a run for the table, or None if it has not been evaluated yet."""
    run = out / cell.path
    content = evaluated_result(run, study.evaluate_config(run))
    if content is None:
        return None
    evaluation = content["evaluation"]
    return {
        "key": run_key(*study.configs(cell)),
        "reference": reference_key(*study.configs(cell)),
        "values": evaluation["rows"]["trained"],
        "references": {name: row for name, row in evaluation["rows"].items() if name in REFERENCES},
        **online_probe(run),
        **{name: evaluation[name] for name in PROTOCOL_KEYS},
        **{name: content[name] for name in ("machine", "versions", "time", "command")},
    }


def online_probe(run: Path) -> Record:
    """The online probe's accuracies by name, each with the share of training after which it was measured."""
    records = read_metrics(run) if (run / METRICS).is_file() else []
    last = max((record["step"] for record in records), default=0)
    curves = {
        name: [(round(record["step"] / last, 4), record[name]) for record in records if name in record]
        for name in ONLINE_METRICS
    }
    return {"curves": {name: points for name, points in curves.items() if points}}


def write(study: Study, out: Path, failed: dict[str, str], known: Mapping[str, Record] = _NONE) -> dict[str, Any]:
    """Write compare.json, table.md and report.html from the runs that are done; return the content of the first."""
    runs: list[Record] = []
    references: dict[str, dict[str, dict[str, Any]]] = {}
    about: dict[str, Any] = provenance()
    evaluated: dict[str, Any] = {}
    known_references = _known_references(known)
    for cell in study.cells():
        found = known.get(run_key(*study.configs(cell))) or record(study, cell, out)
        if found is None:
            continue
        runs.append({**found, **cell._asdict(), "path": str(cell.path)})
        for name, row in (found["references"] or known_references.get(found["reference"], {})).items():
            references.setdefault(cell.data, {}).setdefault(name, {})[str(cell.seed)] = row
        evaluated[cell.data] = {name: found[name] for name in PROTOCOL_KEYS}
        about |= {name: found[name] for name in ("machine", "versions")}
    content = {
        "schema": RESULT_SCHEMA,
        "kind": "compare",
        "title": study.title,
        "finding": study.finding,
        "methods": list(study.methods),
        "data": list(study.data),
        "seeds": study.seeds,
        "base": study.base,
        "versus": study.versus,
        "variants": study.variants,
        "settings": study.settings,
        "runs": runs,
        "references": references,
        "failed": failed,
        "evaluated": evaluated,
        **about,
    }
    write_file(out / COMPARISON, json.dumps(content, indent=1) + "\n")
    write_file(out / TABLE, markdown(content))
    write_report(out, out / PAGE)
    return content
