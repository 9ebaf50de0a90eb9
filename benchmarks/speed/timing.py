"""Interleaved repetitions and medians, so that disturbances of a shared machine affect all cases alike."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table. ``ratio`` carries over to other machines; the values depend on this one."""

    part: str
    what: str
    value: str
    ratio: float | None = None
    to: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @classmethod
    def of_speeds(
        cls,
        part: str,
        what: str,
        ours: float,
        theirs: float,
        *,
        to: str,
        at_least: float | None = None,
        digits: int = 1,
    ) -> "Row":
        """A row with images per second, next to those of a peer."""
        value = f"{ours:,.{digits}f} against {theirs:,.{digits}f} images/s"
        return cls(part=part, what=what, value=value, ratio=ours / theirs, to=to, at_least=at_least)

    @property
    def holds(self) -> bool | None:
        if self.ratio is None or (self.at_least is None and self.at_most is None):
            return None
        return (self.at_least is None or self.ratio >= self.at_least) and (
            self.at_most is None or self.ratio <= self.at_most
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def interleaved(cases: dict[str, Callable[[], object]], repetitions: int = 7) -> dict[str, float]:
    """Median seconds of each case; the cases alternate, and the first round is a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repetition in range(repetitions + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if repetition:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def runs(cases: dict[str, list[str]], repetitions: int) -> dict[str, list[list[float]]]:
    """The numbers that each case prints, run as a process; the cases alternate, and every round is kept."""
    found: dict[str, list[list[float]]] = {name: [] for name in cases}
    for _ in range(repetitions):
        for name, arguments in cases.items():
            command = [sys.executable, "-m", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "benchmarks", check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def processes(cases: dict[str, list[str]], repetitions: int = 3) -> dict[str, list[float]]:
    """Medians of these numbers over the rounds."""
    found = runs(cases, repetitions)
    return {name: [median(values) for values in zip(*turns, strict=True)] for name, turns in found.items()}
