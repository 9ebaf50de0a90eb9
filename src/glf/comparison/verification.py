"""glf verify: judge a stored backbone again, and say whether the numbers are the same."""

import shlex
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from glf import result
from glf.config.base import from_dict
from glf.config.evaluation import EvaluateConfig, VerifyConfig
from glf.evaluation.suite import run_evaluation


def verify(config: VerifyConfig, console: Console | None = None) -> bool:
    """Whether a second evaluation, with features extracted anew, gives what result.json says."""
    console = console or Console()
    run = config.result.parent if config.result.name == result.FILE else config.result
    content = result.read(run)
    if "evaluation" not in content:
        raise ValueError(f"{run} has not been judged: nothing to compare with (glf evaluate {shlex.quote(str(run))})")
    stored = content["evaluation"]
    asked = from_dict(EvaluateConfig, stored["config"])
    with tempfile.TemporaryDirectory() as cache:
        found = run_evaluation(
            replace(asked, run=run, references=False, compare_with=(), artifacts=False), Path(cache), console
        )
    before, now = stored["rows"]["trained"], found["rows"]["trained"]
    table = Table("protocol", "stored", "now", "")
    for key, words in stored["protocols"].items():
        table.add_row(
            words, str(before[key]), str(now.get(key)), "same" if before[key] == now.get(key) else "different"
        )
    console.print(table)
    other = {n: (v, found["versions"].get(n)) for n, v in stored["versions"].items() if v != found["versions"].get(n)}
    if before != now and other:
        console.print(
            "versions differ: " + ", ".join(f"{n} {a} -> {b}" for n, (a, b) in other.items()), highlight=False
        )
    return bool(before == now)
