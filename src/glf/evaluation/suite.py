"""Backbones on the test split: one feature pass, the parts of the suite, the references beside it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from glf import result
from glf.config.base import to_dict
from glf.config.evaluation import EvaluateConfig, Suite
from glf.device import torch_device
from glf.evaluation.artifacts import outline, write_artifacts
from glf.evaluation.context import EvalContext, EvalTarget, Metric, is_library_model, load_target
from glf.evaluation.detect.run import detected
from glf.evaluation.finetune import finetuned
from glf.evaluation.geometry import geometry, theory
from glf.evaluation.probes import knn, linear, logistic
from glf.files import printable
from glf.malloc import retain_freed_memory
from glf.nn.prior import Pixels

# Each part of the suite: whether it needs labels, and what it makes of a case.
PARTS: dict[Suite, tuple[bool, Callable[[EvalContext], dict[str, Metric]]]] = {
    "knn": (True, knn),
    "linear": (True, linear),
    "logistic": (True, logistic),
    "geometry": (False, geometry),
    "theory": (False, theory),
    "finetune": (True, finetuned),
    "detect": (False, detected),
}


REQUEST_FIELDS = {
    "suite",
    "references",
    "compare_with",
    "artifacts",
    "out",
    "device",
    "batch_size",
}  # what is asked for, not how it is judged


def evaluate(config: EvaluateConfig, console: Console | None = None) -> dict[str, Any]:
    """Judge a backbone; writes the evaluation into its result.json and returns it."""
    console = console or Console()
    out = directory(config)
    found = run_evaluation(config, out, console)
    _print(console, found)
    before = result.read(out).get("evaluation") if (out / result.FILE).exists() else None
    found = found if before is None else _together(before, found)
    result.update(out, evaluation=found, **({"kind": "evaluate"} if out != config.run else {}))
    console.print(f"written to {out / result.FILE}", highlight=False, soft_wrap=True)
    return found


def directory(config: EvaluateConfig) -> Path:
    """Where the result goes and the features are kept: the run itself, or a directory for what is none."""
    if config.out is not None:
        return config.out
    if config.run.is_dir() or not (is_library_model(str(config.run)) or config.run.is_file()):
        return config.run  # what does not exist is complained about where it is read
    name = re.sub(r"[^\w.]+", "-", config.run.stem if config.run.is_file() else str(config.run))
    return Path("runs") / f"{name}-{Path(config.data or '').stem or 'data'}"


def run_evaluation(config: EvaluateConfig, out: Path, console: Console) -> dict[str, Any]:
    """The evaluation alone, with features and artifacts kept in ``out``."""
    judged = load_target(str(config.run), config)
    same = replace(config, data=config.data or judged.trained.data, weights=None, image_size=None)
    others = [load_target(spec, same) for spec in config.compare_with]
    _say_what_is_missing(judged, console)
    columns: dict[str, tuple[nn.Module, EvalTarget]] = {}
    if config.references:
        columns = {"pixels": (Pixels(), judged), "untrained": (judged.untrained(), judged)}
    columns |= {"trained": (judged.backbone, judged)} | {one.name: (one.backbone, one) for one in others}
    place = torch_device(config.device)
    found: dict[str, dict[str, Metric]] = {}
    cases = {
        name: EvalContext(
            name=name, encoder=encoder, target=where, place=place, config=config, out=out, console=console
        )
        for name, (encoder, where) in columns.items()
    }
    with retain_freed_memory(place == "cpu"):
        for name, case in cases.items():
            found[name] = _run_parts(case)
        if config.artifacts:
            write_artifacts(cases["trained"], {name: outline(case) for name, case in cases.items()})
    figures = {key: figure for row in found.values() for key, figure in row.items()}
    return {
        "data": judged.train.name,
        "split": judged.split,
        "train": len(judged.train),
        "test": len(judged.test),
        "classes": list(judged.train.classes),
        "protocols": {key: figure.words for key, figure in figures.items()},
        "percent": [key for key, figure in figures.items() if figure.percent],
        "rows": {name: {key: figure.value for key, figure in row.items()} for name, row in found.items()},
        "details": {
            name: {key: dict(figure.detail) for key, figure in row.items() if figure.detail}
            for name, row in found.items()
        },
        "config": to_dict(config),
        **result.provenance(),
    }


def _together(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """What an earlier evaluation has found and this one has not asked for again, if all else was the same."""

    def else_(evaluation: dict[str, Any]) -> dict[str, Any]:
        about = {key: evaluation.get(key) for key in ("data", "split", "train", "test", "classes")}
        return about | {key: value for key, value in evaluation["config"].items() if key not in REQUEST_FIELDS}

    if else_(before) != else_(found):
        return found
    both = {
        key: {name: before[key].get(name, {}) | found[key].get(name, {}) for name in before[key] | found[key]}
        for key in ("rows", "details")
    }
    suite = [
        *before["config"]["suite"],
        *(part for part in found["config"]["suite"] if part not in before["config"]["suite"]),
    ]
    return (
        found
        | both
        | {
            "protocols": before["protocols"] | found["protocols"],
            "percent": [*before["percent"], *(key for key in found["percent"] if key not in before["percent"])],
            "config": found["config"] | {"suite": suite},
        }
    )


def _run_parts(case: EvalContext) -> dict[str, Metric]:
    """What the parts that are asked for say, in the suite's order."""
    asked = get_args(Suite) if "all" in case.config.suite else case.config.suite
    found: dict[str, Metric] = {}
    for name, (needs_labels, part) in PARTS.items():
        if name in asked and (case.target.labelled or not needs_labels):
            if case.console.is_terminal:  # some take minutes: say which
                case.console.print(f"[dim]{case.name}: {name}[/]", highlight=False)
            found |= part(case)
    return found


def _say_what_is_missing(judged: EvalTarget, console: Console) -> None:
    """Labels that cannot be judged with, and classes that nobody could have learnt."""
    train, test = judged.train, judged.test
    for skipped in {train.skipped, test.skipped} - {()}:
        note = f"files skipped: {len(skipped):,}, first {skipped[0].line(': ')}"
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    if not judged.labelled:
        why = "no images to judge on but those that were trained on"
        if not (train.labelled and test.labelled):
            why = "one class only" if len(train.classes) == 1 else "no labels"
        console.print(f"{why}: only what can be said without them", highlight=False)
        return
    absent = np.setdiff1d(test.targets, train.targets)
    if len(absent):
        names = printable(", ".join(train.classes[int(label)] for label in absent[:5]))
        names += ", ..." if len(absent) > 5 else ""
        count = int(np.isin(test.targets, absent).sum())
        note = f"absent from train, so never predicted: {names} ({count:,} test images)"
        console.print(note, highlight=False, markup=False)


def _print(console: Console, found: dict[str, Any]) -> None:
    title = f"{found['data']}: {found['test']:,} images of the {found['split']} split, {found['train']:,} to learn from"
    table = Table(title=escape(printable(title)), title_justify="left")
    table.add_column("protocol")
    for name in found["rows"]:
        table.add_column(escape(printable(name)), justify="right")
    for key, words in found["protocols"].items():
        table.add_row(words, *(_shown(found, name, key) for name in found["rows"]))
    console.print(table)


def _shown(found: dict[str, Any], name: str, key: str) -> str:
    value = found["rows"][name].get(key)
    if value is None:
        return "-"
    if key not in found["percent"]:
        return f"{value:.2f}"
    low, high = found["details"][name][key].get("interval", (0, 0))
    return f"{100 * value:.1f} %" + (f" ± {50 * (high - low):.1f}" if high > low else "")
