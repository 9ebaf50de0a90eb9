"""What is read of a run: result.json, metrics.jsonl and artifacts/, never data or checkpoints."""

import json
from base64 import b64encode
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from glf.result import load_json, read_result
from glf.runfiles import ARTIFACTS, COMPARISON, FIGURE_DATA, METRICS, RESULT

Curve = list[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Run:
    """A run's directory, read as far as it has come."""

    path: Path
    content: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def title(self) -> str:
        data = self.content.get("data", {}).get("name") or self.evaluation.get("data", "?")
        return f"{self.content.get('method') or self.name} on {Path(str(data)).name}"

    @property
    def evaluation(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content.get("evaluation", {})
        return found

    def value(self, key: str, column: str = "trained") -> float | None:
        found: float | None = self.evaluation.get("rows", {}).get(column, {}).get(key)
        return found

    def interval(self, key: str, column: str = "trained") -> tuple[float, float] | None:
        found = self.evaluation.get("details", {}).get(column, {}).get(key, {}).get("interval")
        return (found[0], found[1]) if found and found[1] > found[0] else None

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Every logged number by its name, against the step; a line that a kill cut short is left out."""
        found: dict[str, Curve] = defaultdict(list)
        path = self.path / METRICS
        for line in path.read_text().splitlines() if path.is_file() else []:
            try:
                values = json.loads(line)
                step = float(values.pop("step"))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            for key, value in values.items():
                if isinstance(value, int | float):
                    found[key].append((step, float(value)))
        return dict(found)

    @cached_property
    def artifacts(self) -> dict[str, Any]:
        """What evaluation left to show; nothing if the run was trained on since, for it is of other weights then."""
        path = self.path / ARTIFACTS / FIGURE_DATA
        if not self.evaluation or not path.is_file():
            return {}
        return load_json(path)

    def sheet(self, name: str) -> str | None:
        """A sheet of thumbnails as an address that needs no network."""
        path = self.path / ARTIFACTS / f"{name}.webp"
        return f"data:image/webp;base64,{b64encode(path.read_bytes()).decode()}" if path.is_file() else None


def find(place: Path) -> tuple[list[Run], list[tuple[Path, dict[str, Any]]]]:
    """The runs below a directory, and the comparisons; the runs of a comparison are its own."""
    if not place.is_dir():
        raise FileNotFoundError(f"no run below {place} (a run holds {RESULT}): is the path right?")
    compared = [path.parent for path in sorted(place.rglob(COMPARISON))]
    alone = sorted(
        path.parent
        for path in place.rglob(RESULT)
        if not any(folder == path.parent or folder in path.parent.parents for folder in compared)
    )
    if not alone and not compared:
        raise FileNotFoundError(f"no run below {place} (a run holds {RESULT}): glf pretrain makes one")
    return [Run(path, read_result(path)) for path in alone], [(path, load_json(path / COMPARISON)) for path in compared]
