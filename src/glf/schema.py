"""The JSON files that glf reads again, as types: result.json, compare.json (the report: reporting/figure_data.py).

Only what is read again is described; other keys are not looked at. ``check`` names the file and the key of a value that
does not fit: files may be damaged, edited, or somebody else's.
"""

from pathlib import Path
from typing import Annotated, Any, TypedDict

from glf.config.bounds import Bounds
from glf.config.fits import wrong_key

Count = Annotated[int, Bounds(least=0, most=10**12)]
Few = Annotated[int, Bounds(least=1, most=10**5)]  # numbers that a page is as long as
Table = dict[str, Any]


class Detail(TypedDict, total=False):
    """What is known about one figure besides its value."""

    interval: tuple[float, float]
    per_class: list[float | None]


class EvaluationMore(TypedDict, total=False):
    """What earlier evaluations lack, or some."""

    data: str
    split: str
    train: Count
    test: Count
    classes: list[str]
    details: dict[str, dict[str, Detail]]
    percent: list[str]
    methods: dict[str, str | None]
    missing: dict[str, dict[str, str]]
    config: Table
    versions: dict[str, str]


class Evaluation(EvaluationMore):
    """The section ``evaluation`` of result.json, by `glf evaluate`."""

    protocols: dict[str, str]
    rows: dict[str, dict[str, float | None]]


class FindingRecord(TypedDict):
    """A problem that the doctor found."""

    name: str
    since: int
    why: str
    evidence: str
    advice: str


class LabelledCandidate(TypedDict, total=False):
    """Figures that need labels."""

    knn: float


class Candidate(LabelledCandidate):
    """Figures of frozen, averaged or adapted weights on held-out images."""

    kept: float
    rank: float
    uniformity: float
    recall: float


class AdaptationRecord(TypedDict):
    """The section ``adaptation`` of result.json."""

    candidates: dict[str, Candidate]
    chosen: str
    share: float
    by: str


class Images(TypedDict, total=False):
    """The section ``data`` of result.json."""

    name: str
    key: str
    images: Count
    train: Count
    val: Count
    skipped: Count
    classes: list[str]


class TermRecord(TypedDict):
    """A term of the objective."""

    weight: float
    name: str
    formula: str


class ObjectiveRecord(TypedDict, total=False):
    """The section ``objective`` of result.json."""

    align: list[TermRecord]
    constrain: list[TermRecord]
    transforms: list[dict[str, str]]
    architecture: str


class LoggerState(TypedDict, total=False):
    """A logger in loggers/state.json: the id of its run there, and the last step of each series that it has."""

    run: str
    logged: dict[str, float]


class RunResult(TypedDict, total=False):
    """result.json."""

    kind: str
    method: str
    objective: ObjectiveRecord
    data: Images
    backbone: Table
    config: Table
    training: dict[str, float | None]
    doctor: list[FindingRecord]
    adaptation: AdaptationRecord
    evaluation: Evaluation
    versions: dict[str, str]
    machine: Table
    command: str
    time: str


class RunMore(TypedDict, total=False):
    """What a run of a comparison may lack: its place on this machine, and its online probe."""

    path: str
    curves: dict[str, list[tuple[float, float]]]


class ComparedRun(RunMore):
    """A run in compare.json."""

    data: str
    method: str
    variant: str
    seed: Count
    values: dict[str, float | None]


class Protocols(TypedDict):
    """How the runs on one data set were evaluated."""

    protocols: dict[str, str]
    split: str
    train: Count
    test: Count


class ComparisonMore(TypedDict, total=False):
    """What the stored results of a study may lack."""

    finding: str
    seeds: Annotated[int, Bounds(least=1, most=10**6)]
    versus: dict[str, str]
    settings: Table
    references: dict[str, dict[str, dict[str, dict[str, float | None]]]]
    failed: dict[str, str]
    evaluated: dict[str, Protocols]
    versions: dict[str, str]
    machine: Table
    command: str


class ComparisonResult(ComparisonMore):
    """compare.json."""

    title: str
    methods: list[str]
    data: list[str]
    base: str
    variants: dict[str, Table]
    runs: list[ComparedRun]


def check(content: Any, kind: Any, path: Path) -> None:
    """Raise ValueError with the file and the key of the first value that does not fit."""
    if wrong := wrong_key(content, kind):
        raise ValueError(f"{path} is damaged, or was edited: {wrong}; create it again")
