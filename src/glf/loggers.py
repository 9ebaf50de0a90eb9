"""Loggers next to metrics.jsonl: TensorBoard, Weights & Biases, MLflow and CSV, by Lightning's own classes.

metrics.jsonl is the truth. A logger gets its records under the same names; ``loggers/state.json`` in the run directory
has the id of its run and what a killed process has logged beyond the checkpoint, so that nothing is logged twice.
"""

import csv
import json
import logging
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from glf.files import printable
from glf.result import write_file
from glf.runfiles import LOGGERS
from glf.schema import LoggerState, check

STATE = LOGGERS / "state.json"
PROJECT = "glf"  # project of W&B and experiment of MLflow, unless their environment variables name another
_PACKAGES = ("tensorboard", "wandb", "mlflow")  # csv needs none
_ID = re.compile(r"[\w-]{0,64}")  # of a run: it becomes part of paths
# A tracking server that has gone may hold up training for seconds, not for MLflow's own four minutes.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


def check_installed(names: Iterable[str]) -> None:
    """Refuse loggers whose package is missing. A folder called wandb, as W&B makes them, is no package."""
    for name in names:
        found = find_spec(name) if name in _PACKAGES else None
        if name in _PACKAGES and (found is None or found.origin is None):
            raise ValueError(f"--logger {name} needs its package: pip install 'glf[{name}]'")


def read_state(out: Path) -> dict[str, LoggerState]:
    """What is known about the loggers of a run: empty for a run without any."""
    if not (out / STATE).is_file():
        return {}
    try:
        content: dict[str, LoggerState] = json.loads((out / STATE).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{out / STATE} is not valid JSON ({error}): delete it") from error
    check(content, dict[str, LoggerState], out / STATE)
    for name, state in content.items():
        if name not in (*_PACKAGES, "csv") or not _ID.fullmatch(state.get("run", "")):
            raise ValueError(f"{out / STATE} is damaged, or was edited: see {name}; delete it")
    return content


class Loggers:
    """The loggers of a run, in its first process. One that fails is left out from then on, and that is said once."""

    def __init__(self, out: Path | None, names: Sequence[str], say: Callable[[str], None]) -> None:
        self.out, self.names, self.say = out, names, say
        self.active: dict[str, Any] = {}
        self.state: dict[str, LoggerState] = {}

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for name in list(self.active):
            with self._left_out_if_it_fails(name):
                _finish(name, self.active[name], failed=kind is not None)
        self.active.clear()

    def begin(self, config: Mapping[str, Any], records: Sequence[Mapping[str, Any]], step: int, resumed: bool) -> None:
        """Start the loggers, and continue those that the run has, at a step.

        ``records`` are all of metrics.jsonl, also later ones. At the start of a run a logger that cannot be started is
        an error; a resumed run continues without it.
        """
        if self.out is None:
            return
        self.state = read_state(self.out)
        names = list(dict.fromkeys((*self.names, *self.state)))
        for name in names:
            with self._left_out_if_it_fails(name, fatal=not resumed):
                new = name not in self.state or name == "csv"  # Lightning's CSV begins with an empty file
                state = LoggerState() if new else self.state[name]
                self.active[name] = logger = _start(name, self.out, state)
                state["logged"] = {} if new else last_steps(records, state.get("logged", {}))
                self.state[name] = state
                if new:
                    _log_config(name, logger, config)
                for record in (one for one in records if one["step"] <= step):
                    self._send(name, record)
                logger.save()
        if names:
            write_file(self.out / STATE, json.dumps(self.state, indent=1) + "\n")

    def reopen(self) -> None:
        """Continue the loggers of a run that has ended."""
        assert self.out is not None
        try:
            self.state = read_state(self.out)
        except (ValueError, OSError) as error:
            self.say(f"logger    {error}; nothing is logged")
        for name, state in self.state.items():
            with self._left_out_if_it_fails(name):
                check_installed([name])
                rows = _rows(self.out) if name == "csv" else []
                self.active[name] = _start(name, self.out, state)
                for values, step in rows:
                    self.active[name].log_metrics(values, step)
                state["logged"] = {}

    def log(self, record: Mapping[str, Any]) -> None:
        """Log a record: values by name, with their step. What a killed process has logged is left out."""
        for name in list(self.active):
            with self._left_out_if_it_fails(name, record["step"]):
                self._send(name, record)
                self.active[name].save()

    def _send(self, name: str, record: Mapping[str, Any]) -> None:
        step, logged = int(record["step"]), self.state[name].get("logged", {})
        values = {
            series: value
            for series, value in record.items()
            if series != "step" and isinstance(value, int | float) and step > logged.get(series, -1)
        }
        if values:
            self.active[name].log_metrics(values, step)

    @contextmanager
    def _left_out_if_it_fails(self, name: str, step: int | None = None, fatal: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # packages of others, disks and servers: anything
            self.active.pop(name, None)
            why = printable(str(error).strip().partition("\n")[0][:300] or type(error).__name__)
            if fatal:
                raise ValueError(f"--logger {name} could not be started ({why}): leave it out, or repair it") from error
            when = "" if step is None else f" at step {step}"
            self.say(f"logger    {name} failed{when} ({why}): it gets nothing more; the run directory has everything")


def last_steps(records: Iterable[Mapping[str, Any]], earlier: Mapping[str, float]) -> dict[str, float]:
    """The last step of each series, in these records or before them.

    >>> last_steps([{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0, "lr": 0.1}], {"loss": 40})
    {'loss': 40, 'lr': 20}
    """
    found = dict(earlier)
    for record in records:
        for series in record.keys() - {"step"}:
            found[series] = max(record["step"], found.get(series, -1))
    return found


def final_record(content: Mapping[str, Any], step: int) -> dict[str, Any]:
    """What is known at the end of training, as a record: ``result/...``; of an adaptation also what it compared."""
    values = {f"result/{name}": value for name, value in content["training"].items()}
    if found := content.get("adaptation"):
        values["result/share"] = found["share"]
        for column, of in (("frozen", "frozen"), ("chosen", found["chosen"])):
            measured = found["candidates"].get(of, {})
            values |= {f"result/{column}/{name}": value for name, value in measured.items()}
    return {"step": step, **values}


def evaluation_record(evaluation: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The evaluation of a run and of its references, but not of the other models in the table."""
    others = evaluation["methods"].keys() - {"trained"}
    return {"step": step} | {
        f"evaluation/{row}/{name}": value
        for row, values in evaluation["rows"].items()
        if row not in others
        for name, value in values.items()
    }


def _start(name: str, out: Path, state: LoggerState) -> Any:
    """Lightning's logger, new or continued. The id of its run is put into the state."""
    from lightning.pytorch import loggers

    logging.getLogger("lightning.pytorch.loggers").setLevel(logging.ERROR)  # that an experiment is created
    folder, title = (out / LOGGERS).absolute(), out.absolute().name
    folder.mkdir(parents=True, exist_ok=True)
    if name == "tensorboard":

        class TensorBoard(loggers.TensorBoardLogger):
            log_dir = loggers.TensorBoardLogger.root_dir  # Lightning's own expands variables in a folder's name

        return TensorBoard(folder, name=name, version="", default_hp_metric=False)
    if name == "csv":
        table = loggers.CSVLogger(folder, name=name, version="")
        with warnings.catch_warnings():  # it deletes the file that is there, and says so
            warnings.simplefilter("ignore")
            table.experiment  # noqa: B018
        return table
    if name == "mlflow":
        with _mlflow_environment() as server:
            logger = loggers.MLFlowLogger(
                os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT),
                run_name=title,
                tracking_uri=server or (folder / name).as_uri(),
                run_id=state.get("run"),
            )
            state["run"] = str(logger.run_id)
        return logger
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    state["run"] = state.get("run") or uuid.uuid4().hex[:8]
    board = loggers.WandbLogger(title, save_dir=folder, project=project, id=state["run"])
    board.experiment  # noqa: B018 (starts the run)
    return board


@contextmanager
def _mlflow_environment() -> Iterator[str | None]:
    """Yields the user's tracking server, if any. MLflow itself sets the variable, which another run would read."""
    server = os.environ.get("MLFLOW_TRACKING_URI")
    before = {one: os.environ.get(one) for one in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE")}
    if server:
        for one, value in _PATIENCE.items():
            os.environ.setdefault(one, value)
    else:
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    try:
        yield server
    finally:
        for one, was in before.items():
            if was is None:
                os.environ.pop(one, None)
            else:
                os.environ[one] = was


def _log_config(name: str, logger: Any, config: Mapping[str, Any]) -> None:
    logger.log_hyperparams(dict(config))
    if name == "tensorboard":  # Lightning only writes a YAML file unless it may log a metric that is none
        from tensorboard.plugins.hparams import summary_v2

        flat = {one: value if isinstance(value, int | float | str) else str(value) for one, value in _flat(config)}
        logger.experiment.file_writer.add_summary(summary_v2.hparams_pb(flat, start_time_secs=time.time()))


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _rows(out: Path) -> list[tuple[dict[str, Any], int]]:
    """The rows of the CSV file so far, with their steps."""
    path = out / LOGGERS / "csv" / "metrics.csv"
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [({k: v for k, v in row.items() if v and k != "step"}, int(row["step"])) for row in rows]


def _finish(name: str, logger: Any, failed: bool) -> None:
    logger.finalize("failed" if failed else "success")
    if name == "wandb":  # the next run of this process would otherwise continue this one
        logger.experiment.finish(exit_code=int(failed))
