"""A doctor for runs: what is wrong with one, since when, why, and what to try. docs/doctor.md has the table.

No torch here: whoever has a metrics.jsonl can ask, while the run goes on or after it was killed.
"""

import json
from pathlib import Path

from glf.health import rules
from glf.health.rules import PATIENCE, Finding, Record, Records
from glf.result import read_result
from glf.runfiles import RESULT

METRICS = "metrics.jsonl"


class UnhealthyRunError(RuntimeError):
    """A run was stopped because of what the doctor found."""


def examine(records: Records) -> list[Finding]:
    """What is wrong at the end of these records, the worst first; nothing in a healthy run.

    Of the kinds of collapse the narrowest is named; after something that was not finite nothing else is judged.

    >>> steps = [{"step": step, "epoch": 0, "z/spread": 0.5 if step < 4 else 0.001} for step in range(1, 10)]
    >>> [(finding.name, finding.since) for finding in examine(steps)]
    [('constant collapse', 4)]
    """
    lost = rules.not_finite(records)
    sound = [r for r in records if r["step"] < lost[0].since] if lost else records
    collapsed = rules.constant_collapse(sound) or rules.cluster_collapse(sound) or rules.dimensional_collapse(sound)
    others = (rules.lost_scale, rules.dead_term, rules.dominating_term, rules.starvation)
    return [*lost, *collapsed, *(finding for look in others for finding in look(sound))]


def read(run: Path) -> list[Record]:
    """What a run has logged so far; a line that a kill cut short is left out."""
    path = run / METRICS
    if not path.is_file():
        raise FileNotFoundError(f"no {METRICS} in {run}: is it the directory of a run?")
    records: list[Record] = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "step" in record:
            records.append(record)
    return records


def diagnose(run: Path) -> tuple[list[Finding], str]:
    """The findings about a run's directory, and in words what they were judged from."""
    records = read(run)
    steps = sum("loss" in r for r in records)
    state = "finished" if (run / RESULT).is_file() and "training" in read_result(run) else "not finished"
    text = f"{steps} logged steps up to step {records[-1]['step']:g}, {state}" if records else "nothing logged yet"
    early = f"; a sickness shows after {PATIENCE}" if steps < PATIENCE else ""
    return examine(records), text + early
