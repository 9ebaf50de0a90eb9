"""glf compare: run what is missing, and write the table after every run."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glf import result
from glf.comparison.runs import evaluated_result, key, reference_key, run_all
from glf.comparison.study import Cell, Study, from_flags
from glf.config.evaluation import CompareConfig
from glf.reporting.page import write_report
from glf.reporting.study_tables import markdown

FILE, TABLE, PAGE = "compare.json", "table.md", "report.html"
REFERENCES = ("pixels", "untrained")
PROTOCOL_KEYS = ("protocols", "split", "train", "test")  # how, and on what


def compare(config: CompareConfig, console: Console | None = None) -> dict[str, Any]:
    """Train and judge what is not there yet; returns what compare.json holds."""
    if sys.platform == "win32":
        raise ValueError("glf compare locks its runs as Unix does: run it on Linux or macOS")
    content = conduct(from_flags(config), config.out, config.jobs, console)
    if content["failed"]:
        raise ValueError(f"{len(content['failed'])} runs failed; the others are in {config.out / TABLE}")
    return content


def conduct(
    study: Study,
    out: Path,
    jobs: int | None = None,
    console: Console | None = None,
    known: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    keep: Callable[[dict[str, Any]], None] = lambda content: None,
    references: bool = True,
) -> dict[str, Any]:
    """The same for a study that is there already, whatever fails.

    ``known`` are runs of other studies or machines by their key, which are not made again; ``keep`` is told what there
    is after every run. Without ``references`` pixels and the untrained network are not judged.
    """
    console = console or Console()
    cells = list(study.cells())
    missing = [cell for cell in cells if key(study, cell) not in known]
    first = (study.methods[0], next(iter(study.variants)))  # beside it, once for each set of images and seed
    wanted = [cell for cell in missing if references and (cell.method, cell.variant) == first]
    elsewhere = _references(known)
    beside = {cell for cell in wanted if reference_key(study, cell) not in elsewhere}
    for line in (f"{study.title}: {len(cells)} runs in {out}, {len(cells) - len(missing)} known", study.cost):
        if line:
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    failed: dict[str, str] = {}
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("runs", total=len(missing))

        def done(cell: Cell, why: str | None) -> None:
            if why is not None:
                failed[str(cell.place)] = why
            progress.advance(task)
            text = f"{cell.place}  {_said(study, out / cell.place, why)}"
            progress.console.print(text, highlight=False, soft_wrap=True, markup=False)
            keep(write(study, out, failed, known))

        run_all(study, missing, out, jobs, done, beside)
    content = write(study, out, failed, known)
    keep(content)
    console.print(markdown(content), highlight=False, soft_wrap=True, markup=False)
    return content


def _references(known: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What pixels and the untrained network have reached beside runs that are known."""
    return {run["reference"]: run["references"] for run in known.values() if run["references"]}


def _said(study: Study, run: Path, why: str | None) -> str:
    if why is not None:
        return f"failed: {why}"
    content = evaluated_result(study, run)
    assert content is not None, "a run that did not fail was judged"
    row = content["evaluation"]["rows"]["trained"]
    return "  ".join(f"{name} {value:.4g}" for name, value in row.items())


def record(study: Study, cell: Cell, out: Path) -> dict[str, Any] | None:
    """What a table needs to know of a run, once it has been judged."""
    content = evaluated_result(study, out / cell.place)
    if content is None:
        return None
    found = content["evaluation"]
    return {
        "key": key(study, cell),
        "reference": reference_key(study, cell),
        "values": found["rows"]["trained"],
        "references": {name: row for name, row in found["rows"].items() if name in REFERENCES},
        **{name: found[name] for name in PROTOCOL_KEYS},
        **{name: content[name] for name in ("machine", "versions", "time", "command")},
    }


def write(
    study: Study, out: Path, failed: dict[str, str], known: Mapping[str, dict[str, Any]] = MappingProxyType({})
) -> dict[str, Any]:
    """Collect what is done into compare.json, table.md and report.html."""
    runs: list[dict[str, Any]] = []
    references: dict[str, dict[str, dict[str, Any]]] = {}
    about: dict[str, Any] = result.provenance()
    sets: dict[str, Any] = {}
    elsewhere = _references(known)
    for cell in study.cells():
        found = known.get(key(study, cell)) or record(study, cell, out)
        if found is None:
            continue
        runs.append({**found, **cell._asdict(), "place": str(cell.place)})
        for name, row in (found["references"] or elsewhere.get(found["reference"], {})).items():
            references.setdefault(cell.data, {}).setdefault(name, {})[str(cell.seed)] = row
        sets[cell.data] = {name: found[name] for name in PROTOCOL_KEYS}
        about |= {name: found[name] for name in ("machine", "versions")}
    content = {
        "schema": result.SCHEMA,
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
        "judged": sets,
        **about,
    }
    result.write(out / FILE, json.dumps(content, indent=1) + "\n")
    result.write(out / TABLE, markdown(content))
    write_report(out, out / PAGE)
    return content
