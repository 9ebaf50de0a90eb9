"""glf doctor: what is wrong with a run, since when, why, and what to try (docs/doctor.md).

It needs only metrics.jsonl and no torch, so it works during a run and after a kill.
"""

import json
from pathlib import Path

from rich.console import Console

from glf.config.evaluation import DoctorConfig
from glf.health import rules
from glf.health.rules import PATIENCE, Finding, Record, Records
from glf.result import read_result
from glf.runfiles import METRICS, RESULT
from glf.ui import say


class UnhealthyRunError(RuntimeError):
    """The doctor stopped a run because of a problem."""


def examine(records: Records, ended: bool = False) -> list[Finding]:
    """Return the problems at the end of these records, the worst first; none for a healthy run.

    Of a run that has ``ended`` the last state is examined, however short the run was. Of the kinds of collapse only the
    narrowest is named. Records after a non-finite value are not examined further.

    >>> steps = [{"step": step, "epoch": 0, "z/spread": 0.5 if step < 4 else 0.001} for step in range(1, 10)]
    >>> [(finding.name, finding.since) for finding in examine(steps)]
    [('constant collapse', 4)]
    """
    lost = rules.not_finite(records)
    sound = [r for r in records if r["step"] < lost[0].since] if lost else records
    collapsed = rules.constant_collapse(sound) or rules.cluster_collapse(sound) or rules.dimensional_collapse(sound)
    if ended and not collapsed:
        collapsed = rules.collapsed_at_end(sound)
    others = (rules.lost_scale, rules.dead_term, rules.dominating_term, rules.starvation)
    return [*lost, *collapsed, *(finding for look in others for finding in look(sound))]


def too_short(records: Records) -> bool:
    """Whether a run without problems is not known to be healthy: few logged steps, or features not yet settled."""
    return sum("loss" in r for r in records) < PATIENCE or rules.looks_collapsed(records)


def read_metrics(run: Path) -> list[Record]:
    """Read the metrics logged so far, without a line that was truncated by a kill."""
    path = run / METRICS
    if not path.is_file():
        raise FileNotFoundError(f"no {METRICS} in {run}: is it a run directory?")
    records: list[Record] = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int | float):
            records.append({name: value for name, value in record.items() if isinstance(value, int | float)})
    return records


def diagnose(run: Path) -> tuple[list[Finding], str]:
    """Return the problems of a run, and the verdict with the records it was derived from."""
    records = read_metrics(run)
    steps = sum("loss" in r for r in records)
    state = "finished" if (run / RESULT).is_file() and "training" in read_result(run) else "not finished"
    text = f"{steps} logged steps up to step {records[-1]['step']:g}, {state}" if records else "nothing logged yet"
    findings = examine(records, ended=state == "finished")
    verdict = "unhealthy" if findings else "too short to tell" if too_short(records) else "healthy"
    return findings, f"{verdict} ({text}{f'; problems show after {PATIENCE}' if steps < PATIENCE else ''})"


def doctor(config: DoctorConfig, console: Console | None = None) -> list[Finding]:
    """Return the problems of a run, and print them if a console is given."""
    findings, verdict = diagnose(config.run)
    if console is not None:
        for finding in findings:
            say(console, f"{finding.name} since step {finding.since}", style="bold red")
            for word, text in (("seen", finding.evidence), ("why", finding.why), ("try", finding.advice)):
                say(console, f"  {word:6}{text}")
        say(console, verdict)
    return findings
