"""glf evaluate: run a suite of evaluations on a backbone, on references next to it, and on other models."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn

from glf.config.base import data_name, to_dict
from glf.config.evaluation import EvaluateConfig, Suite
from glf.config.training import AdaptConfig
from glf.device import torch_device
from glf.evaluation.artifacts import write_artifacts
from glf.evaluation.context import EvalContext, EvalTarget, Metric, load_target
from glf.evaluation.detect.run import detection
from glf.evaluation.fewshot import fewshot
from glf.evaluation.finetune import finetuning
from glf.evaluation.geometry import geometry
from glf.evaluation.probes import knn, linear, logistic
from glf.evaluation.theorem import theory
from glf.health.examine import read_metrics
from glf.loggers import STATE, Loggers, evaluation_record
from glf.malloc import retain_freed_memory
from glf.nn.pretrained import is_library_model
from glf.nn.prior import PIXELS, Pixels
from glf.result import provenance, read_result, update_result
from glf.rundir import is_run
from glf.runfiles import ARTIFACTS, FEATURES, METRICS, RESULT
from glf.ui import as_text, say

# Each evaluation of the suite: whether it needs labels, and the function that runs it.
PARTS: dict[Suite, tuple[bool, Callable[[EvalContext], dict[str, Metric]]]] = {
    "knn": (True, knn),
    "linear": (True, linear),
    "logistic": (True, logistic),
    "fewshot": (True, fewshot),
    "geometry": (False, geometry),
    "theory": (False, theory),
    "finetune": (True, finetuning),
    "detect": (False, detection),
}

# Options that choose which metrics are computed, not how.
REQUEST_FIELDS = {"suite", "references", "compare_with", "artifacts", "log", "out", "device", "batch_size"}


def evaluate(config: EvaluateConfig, console: Console | None = None) -> dict[str, Any]:
    """Evaluate a backbone, print the table, write the evaluation to result.json and return it."""
    console = console or Console()
    out = output_directory(config)
    own = check_directory(out, config.run)
    evaluation = run_evaluation(config, out, console)
    _print_table(console, evaluation)
    found = evaluation
    before = read_result(out).get("evaluation") if (out / RESULT).exists() else None
    if before is not None:
        evaluation = _merged(before, evaluation)
    update_result(out, evaluation=evaluation, **({} if own else {"kind": "evaluate"}))
    say(console, f"written to {out / RESULT}")
    if config.log and own and (out / STATE).is_file():
        _log(found, out, console)
    return evaluation


def _log(evaluation: dict[str, Any], run: Path, console: Console) -> None:
    """Log an evaluation to the run's loggers, at its last step."""
    records = read_metrics(run) if (run / METRICS).is_file() else []
    with Loggers(run, (), lambda text: say(console, text)) as loggers:
        loggers.reopen()
        loggers.log(evaluation_record(evaluation, max((int(record["step"]) for record in records), default=0)))


def output_directory(config: EvaluateConfig) -> Path:
    """Directory of the result and the cached features: --out, the run itself, or runs/<model>-<data>."""
    if config.out is not None:
        return config.out
    is_file = config.run.is_file()
    if not is_file and not is_library_model(str(config.run)):
        return config.run  # reading it reports a missing run
    name = re.sub(r"[^\w.]+", "-", config.run.stem if is_file else str(config.run))
    return Path("runs") / f"{name}-{data_name(config.data or '')}"


def check_directory(out: Path, run: Path) -> bool:
    """Whether a directory is that of the run; refuses that of another run, and files that no evaluation has written."""
    own = out == run or (out.exists() and run.exists() and out.samefile(run))
    if is_run(out) and not own:
        raise ValueError(f"{out} is another run, whose evaluation would be replaced: choose another --out")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a directory: choose another --out")
    if (out / RESULT).exists():
        read_result(out)  # raises for a file of another program
    elif not is_run(out) and (taken := [name for name in (FEATURES, ARTIFACTS) if (out / name).exists()]):
        raise ValueError(f"{out / taken[0]} was not written by glf: choose another --out")
    return own


def run_evaluation(config: EvaluateConfig, out: Path, console: Console) -> dict[str, Any]:
    """Run the suite without touching result.json; features and artifacts go to ``out``."""
    target = load_target(str(config.run), config)
    same_data = replace(config, data=config.data or target.pretraining.data, weights=None, image_size=None)
    others = [load_target(spec, same_data) for spec in config.compare_with]
    _warn_about_data(target, console)

    encoders: dict[str, tuple[nn.Module, EvalTarget]] = {}
    if config.references:
        encoders = {"pixels": (Pixels(), target)}
        try:
            before, encoder = target.before_training(config.download)
            encoders[before] = (encoder, target)
        except (ValueError, OSError) as error:  # the frozen encoder of an adapted run may be gone
            if not isinstance(target.pretraining, AdaptConfig):
                raise
            say(console, f"without the frozen encoder: {error}")
    encoders["trained"] = (target.backbone, target)
    encoders |= {other.name: (other.backbone, other) for other in others}
    device = torch_device(config.device)
    contexts = [
        EvalContext(name=name, encoder=encoder, target=of, device=device, config=config, out=out, console=console)
        for name, (encoder, of) in encoders.items()
    ]
    metrics: dict[str, dict[str, Metric]] = {}
    with retain_freed_memory(device == "cpu"):
        for context in contexts:
            metrics[context.name] = _run_suite(context)
        if config.artifacts:
            write_artifacts(contexts)

    every = {key: metric for column in metrics.values() for key, metric in column.items()}
    return {
        "data": target.train.name,
        "split": target.split,
        "train": len(target.train),
        "test": len(target.test),
        "classes": list(target.train.classes),
        "protocols": {key: metric.protocol for key, metric in every.items()},
        "percent": [key for key, metric in every.items() if metric.percent],
        "rows": {name: {key: metric.value for key, metric in column.items()} for name, column in metrics.items()},
        "details": {
            name: {key: dict(metric.details) for key, metric in column.items() if metric.details}
            for name, column in metrics.items()
        },
        "missing": {context.name: context.missing for context in contexts if context.missing},
        "methods": {"trained": target.method} | {other.name: other.method for other in others},
        "config": to_dict(config),
        **provenance(),
    }


def _run_suite(context: EvalContext) -> dict[str, Metric]:
    """Run the requested evaluations on one encoder, in the order of `PARTS`."""
    requested = context.config.suite
    metrics: dict[str, Metric] = {}
    for name, (needs_labels, part) in PARTS.items():
        if (name in requested or "all" in requested) and (context.target.labelled or not needs_labels):
            if context.console.is_terminal:  # some take minutes
                say(context.console, f"{context.name}: {name}", style="dim")
            with context.or_missing(name):
                metrics |= part(context)
    return metrics


def _warn_about_data(target: EvalTarget, console: Console) -> None:
    """Report skipped files, missing labels, and test classes without training images."""
    train, test = target.train, target.test
    for skipped in {train.skipped, test.skipped} - {()}:
        say(console, f"files skipped: {len(skipped):,}, first {skipped[0].line(': ')}")
    if not target.labelled:
        why = "no test images other than the training images"
        if not (train.labelled and test.labelled):
            why = "only one class" if len(train.classes) == 1 else "no labels"
        say(console, f"{why}: evaluations that need labels are left out")
        return
    absent = np.setdiff1d(test.targets, train.targets)
    if len(absent):
        names = ", ".join(train.classes[int(label)] for label in absent[:5]) + (", ..." if len(absent) > 5 else "")
        count = int(np.isin(test.targets, absent).sum())
        say(console, f"classes without training images, never predicted: {names} ({count:,} test images)")


def _merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Add the metrics of an earlier evaluation, if it was made on the same data with the same settings."""

    def setup(evaluation: dict[str, Any]) -> dict[str, Any]:
        data = {key: evaluation.get(key) for key in ("data", "split", "train", "test", "classes")}
        return data | {key: value for key, value in evaluation["config"].items() if key not in REQUEST_FIELDS}

    if setup(before) != setup(now):
        return now
    merged = {
        key: {name: before[key].get(name, {}) | now[key].get(name, {}) for name in before[key] | now[key]}
        for key in ("rows", "details")
    }
    return {
        **now,
        **merged,
        "protocols": before["protocols"] | now["protocols"],
        "percent": list(dict.fromkeys([*before["percent"], *now["percent"]])),
        "methods": before.get("methods", {}) | now["methods"],
        "config": {
            **now["config"],
            "suite": list(dict.fromkeys([*before["config"]["suite"], *now["config"]["suite"]])),
        },
    }


def _print_table(console: Console, evaluation: dict[str, Any]) -> None:
    names = {"test": "test images", "held-out part of train": "held-out training images", "train": "training images"}
    title = (
        f"{evaluation['data']}: {evaluation['test']:,} {names[evaluation['split']]},"
        f" classifiers trained on {evaluation['train']:,}"
    )
    table = Table(title=as_text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("accuracy in %" if evaluation["percent"] else "measure")
    last = Counter(Path(name).name for name in evaluation["rows"])
    for name in evaluation["rows"]:
        short = Path(name).name if last[Path(name).name] == 1 else name
        detail = f"up to {PIXELS} px" if name == "pixels" else evaluation["methods"].get(name)
        table.add_column(as_text(f"{short}\n{detail}" if detail else short), justify="right")
    accuracies = [key for key in evaluation["protocols"] if key in evaluation["percent"]]
    for keys in (accuracies, [key for key in evaluation["protocols"] if key not in accuracies]):
        for key in keys:
            table.add_row(
                as_text(evaluation["protocols"][key]), *(_cell(evaluation, name, key) for name in evaluation["rows"])
            )
        table.add_section()
    console.print(table)


def _cell(evaluation: dict[str, Any], name: str, key: str) -> str:
    value = evaluation["rows"][name].get(key)
    if value is None:
        return "-"
    if key not in evaluation["percent"]:
        return f"{value:.2f}"
    low, high = evaluation["details"][name][key].get("interval", (0, 0))
    return f"{100 * value:.1f}" + (f" ± {50 * (high - low):.1f}" if high > low else "")
