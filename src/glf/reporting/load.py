"""Load runs and comparisons for the report: result.json, metrics.jsonl and artifacts/, never data or checkpoints."""

import json
from base64 import b64encode
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from glf.reporting.figure_data import read_figure_data
from glf.result import load_json, read_result
from glf.runfiles import ARTIFACTS, COMPARISON, FIGURE_DATA, METRICS, RESULT
from glf.schema import ComparisonResult

MAX_MAPS = 24  # of a comparison
Curve = list[tuple[float, float]]  # (step, value)


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory and the content of its result.json."""

    path: Path
    content: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def title(self) -> str:
        if self.adaptation:
            return f"{self.encoder} adapted to {self.data}"
        return f"{self.content.get('method') or self.name} on {self.data}"

    @property
    def data(self) -> str:
        """Name of the data set, without its folder."""
        return Path(str(self.content.get("data", {}).get("name") or self.evaluation.get("data", "?"))).name

    @property
    def evaluation(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content.get("evaluation", {})
        return found

    @property
    def adaptation(self) -> dict[str, Any]:
        """The comparison of frozen, averaged and adapted weights; empty for a run that is no adaptation."""
        found: dict[str, Any] = self.content.get("adaptation", {})
        return found

    @property
    def encoder(self) -> str:
        """Name of the encoder that was adapted, without its library or folder."""
        name = str(self.content.get("config", {}).get("encoder", "?"))
        return Path(name.partition(":")[2] or name).name

    @property
    def encoders(self) -> list[str]:
        """The evaluated encoders: "pixels", "untrained" or "frozen", "trained", and the models of --compare-with."""
        return list(self.evaluation.get("rows", {}))

    def heading(self, encoder: str) -> str:
        """Name of an evaluated encoder, with its method if it is a run."""
        method = self.evaluation.get("methods", {}).get(encoder)
        return f"{encoder} ({method})" if method else encoder

    def value(self, key: str, encoder: str = "trained") -> float | None:
        found: float | None = self.evaluation.get("rows", {}).get(encoder, {}).get(key)
        return found

    def interval(self, key: str, encoder: str = "trained") -> tuple[float, float] | None:
        found = self.evaluation.get("details", {}).get(encoder, {}).get(key, {}).get("interval")
        return (found[0], found[1]) if found and found[1] > found[0] else None

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Every logged value against the step. Skips the line that a killed process has not finished."""
        found: dict[str, Curve] = defaultdict(list)
        path = self.path / METRICS
        for line in path.read_text().splitlines() if path.is_file() else []:
            try:
                values = json.loads(line)
                step = float(values.pop("step"))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
            for key, value in values.items():
                if isinstance(value, int | float):
                    found[key].append((step, float(value)))
        return dict(found)

    @cached_property
    def artifacts(self) -> dict[str, Any]:
        """Data of the map and the galleries; empty without an evaluation, because they then show older weights."""
        path = self.path / ARTIFACTS / FIGURE_DATA
        return read_figure_data(path) if self.evaluation and path.is_file() else {}

    def sheet(self, name: str) -> str | None:
        """A sheet of thumbnails as a data: URL."""
        path = self.path / ARTIFACTS / f"{name}.webp"
        return f"data:image/webp;base64,{b64encode(path.read_bytes()).decode()}" if path.is_file() else None


@dataclass(frozen=True, eq=False)
class Comparison:
    """A directory written by `glf compare` and the content of its compare.json."""

    path: Path
    content: dict[str, Any]

    @cached_property
    def mapped_runs(self) -> list[tuple[str, Run]]:
        """Runs of the first seed that have a feature map, each with a caption, method by method."""
        content = self.content
        seed = min((run["seed"] for run in content["runs"]), default=0)
        found: list[tuple[str, Run]] = []
        for one in sorted(content["runs"], key=lambda one: content["methods"].index(one["method"])):
            path = self.path / one["path"] if "path" in one and one["seed"] == seed else None
            if path is None or not (path / RESULT).is_file() or len(found) == MAX_MAPS:
                continue
            run = Run(path, read_result(path))
            if run.artifacts.get("map"):
                variant = "" if one["variant"] == content["base"] else f" + {one['variant']}"
                found.append((f"{one['method']}{variant}, {Path(one['data']).name}, seed {seed}", run))
        return found


def find_runs(directory: Path) -> tuple[list[Run], list[Comparison]]:
    """Load the runs and the comparisons below a directory; the runs of a comparison are not listed on their own."""
    if not directory.is_dir():
        raise FileNotFoundError(
            f"no run below {directory}: not a directory; pass a run, a comparison, or a folder of them"
        )
    compared = [path.parent for path in sorted(directory.rglob(COMPARISON))]
    alone = sorted(
        path.parent
        for path in directory.rglob(RESULT)
        if not any(folder == path.parent or folder in path.parent.parents for folder in compared)
    )
    if not alone and not compared:
        raise FileNotFoundError(f"no run below {directory} (no {RESULT}): glf pretrain makes one")
    runs = [Run(path, read_result(path)) for path in alone]
    return runs, [Comparison(path, load_json(path / COMPARISON, ComparisonResult)) for path in compared]
