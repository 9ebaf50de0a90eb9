"""glf verify: evaluate a stored run again and compare the numbers."""

import shlex
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from glf.comparison.runs import evaluated_config
from glf.config.evaluation import VerifyConfig
from glf.evaluation.suite import run_evaluation
from glf.result import read_result
from glf.runfiles import RESULT
from glf.ui import as_text, say


def verify(config: VerifyConfig, console: Console | None = None) -> bool:
    """Evaluate a run again, with newly extracted features; return whether result.json holds the same numbers."""
    console = console or Console()
    run = config.result.parent if config.result.name == RESULT else config.result
    content = read_result(run)
    if "evaluation" not in content:
        raise ValueError(f"{run} has not been evaluated: run `glf evaluate {shlex.quote(str(run))}` first")
    stored = content["evaluation"]
    again = replace(evaluated_config(run, content), run=run, references=False, compare_with=(), artifacts=False)
    with tempfile.TemporaryDirectory() as cache:
        found = run_evaluation(again, Path(cache), console)
    before, now = stored["rows"]["trained"], found["rows"]["trained"]
    table = Table("protocol", "stored", "now", "")
    for name, protocol in stored["protocols"].items():
        same = "same" if before.get(name) == now.get(name) else "different"
        table.add_row(*(as_text(cell) for cell in (protocol, str(before.get(name)), str(now.get(name)), same)))
    console.print(table)
    if before != now:
        versions = {name: (old, found["versions"].get(name)) for name, old in stored["versions"].items()}
        changed = [f"{name} {old} -> {new}" for name, (old, new) in versions.items() if old != new]
        if changed:
            say(console, f"versions differ: {', '.join(changed)}")
    return bool(before == now)
