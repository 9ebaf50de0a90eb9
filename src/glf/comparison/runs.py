"""The runs of a study: as many at once as the machine bears, each a process that can be killed and gone on with."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from glf import result
from glf.comparison import THEN
from glf.comparison.study import Cell, Study, flags
from glf.config.base import from_dict, to_dict
from glf.config.evaluation import EvaluateConfig
from glf.config.training import PretrainConfig, ResolvedPretrainConfig
from glf.device import cores, memory
from glf.files import exclusive_lock
from glf.rundir import CONFIG, LAST, RESUMABLE_FIELDS, saved_config
from glf.train.checkpointing import Stopped

MEMORY_OF_A_RUN = 3 * 2**30  # a process with torch, its images and its activations, on a CPU
_NOT_IN_KEY = {"run", "references", "artifacts", "device", "batch_size", "root", "download"}  # say how, not what
# What the rows of pixels and of the untrained network depend on, beside how they are judged.
_SEEN = {"data", "max_images", "val_images", "labels", "seed", "backbone", "image_size", "stem"}
_SAFE = ["-P"] if sys.version_info >= (3, 11) else []  # what lies in the current folder is not imported
_GLF = [sys.executable, *_SAFE, "-m", "glf"]


def run_all(
    study: Study,
    cells: Iterable[Cell],
    out: Path,
    jobs: int | None,
    done: Callable[[Cell, str | None], None],
    beside: Set[Cell] = frozenset(),
) -> None:
    """Every one of these cells that is not there yet; ``done`` hears of each, with what went wrong or None.

    Those in ``beside`` are judged beside pixels and the untrained network, which takes minutes.
    """
    cells = list(cells)
    for cell in cells:
        _check(study, cell, out / cell.place)
    free = places(study, jobs)
    work = _Work(study, out, free, beside)
    with _terminable(), ThreadPoolExecutor(len(free)) as pool:
        waiting = {pool.submit(work, cell) for cell in cells}
        try:
            while waiting:
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for one in finished:
                    done(*one.result())
        except BaseException:
            work.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _terminable() -> Iterator[None]:
    """A polite kill ends the runs under way too, as Ctrl-C does; else they would go on by themselves."""
    if threading.current_thread() is not threading.main_thread():  # only there may signals be handled
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Stopped("stopped; the same command goes on with what was under way", number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def evaluated_result(study: Study, run: Path) -> dict[str, Any] | None:
    """A run's result, once it has been judged as the study asks."""
    content = result.read(run) if (run / result.FILE).exists() else {}
    if "evaluation" not in content:
        return None
    stored = from_dict(EvaluateConfig, content["evaluation"]["config"])
    return content if not _differing(stored, study.judged(run), _NOT_IN_KEY) else None


def key(study: Study, cell: Cell) -> str:
    """A name for how a cell is trained and judged, whatever the study and the variant are called."""
    return _digest(_said(study.config(cell), RESUMABLE_FIELDS | {"recipe"}), _said(study.judged(Path()), _NOT_IN_KEY))


def reference_key(study: Study, cell: Cell) -> str:
    """A name for what pixels and the untrained network are judged on, and how: cells that share it share those rows."""
    seen = {name: value for name, value in _said(study.config(cell), set()).items() if name in _SEEN}
    return _digest(seen, _said(study.judged(Path()), _NOT_IN_KEY))


def _digest(*said: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).hexdigest()


def _said(config: PretrainConfig | EvaluateConfig, but: Set[str]) -> dict[str, Any]:
    """What a configuration says, less what it leaves open: a setting that is new, and not used, changes no name."""
    values = {name: value for name, value in to_dict(config).items() if name not in but}
    return {name: value for name, value in values.items() if value is not None and value is not False and value != {}}


class _Work:
    """Takes a cell and a place for it, and reports what went wrong. A call is made in a thread of its own."""

    def __init__(self, study: Study, out: Path, free: list[dict[str, str]], beside: Set[Cell]) -> None:
        self.study, self.out, self.free, self.beside = study, out, free.copy(), beside
        self.lock, self.stopped = threading.Lock(), False
        self.running: set[subprocess.Popen[bytes]] = set()

    def __call__(self, cell: Cell) -> tuple[Cell, str | None]:
        with self.lock:
            place = self.free.pop()
        try:
            with exclusive_lock(self.out / cell.place, lambda: self.stopped) as held:
                return cell, self.run(cell, self.out / cell.place, place, held)
        except (ValueError, OSError) as error:
            return cell, str(error)
        finally:
            with self.lock:
                self.free.append(place)

    def stop(self) -> None:
        """End what is under way; it is gone on with next time."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()

    def run(self, cell: Cell, run: Path, place: Mapping[str, str], held: int) -> str | None:
        """Train and judge, from wherever an earlier attempt has got to."""
        if evaluated_result(self.study, run) is not None:
            return None
        if run.exists() and not (run / CONFIG).exists():  # a kill fell between making the folder and its first file
            shutil.rmtree(run)
        how = "--resume" if (run / LAST).exists() else "--overwrite"
        # A map and galleries of one seed are enough to look at, and cost a few seconds for each run.
        asked = self.study.judged(run, references=cell in self.beside, artifacts=cell.seed == 0)
        command = ["evaluate", str(run), *flags(asked)]
        if not (run / result.FILE).exists():
            command = ["pretrain", *flags(self.study.config(cell)), "--out", str(run), how, THEN, *command]
        return self.call([*_GLF, *command], run.with_name(f".{run.name}.log"), {**os.environ, **place}, held)

    def call(self, command: list[str], log: Path, environment: Mapping[str, str], held: int) -> str | None:
        """Run a command with its output in a file; returns why it failed."""
        with open(log, "wb") as file:
            with self.lock:
                if self.stopped:
                    return "stopped"
                process = subprocess.Popen(
                    command, stdout=file, stderr=subprocess.STDOUT, env=environment, pass_fds=[held]
                )
                self.running.add(process)
            code = process.wait()
            with self.lock:
                self.running.discard(process)
        if code < 0:
            return f"ended by {signal.Signals(-code).name} (see {log})"
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{lines[-1] if lines else f'exit code {code}'} (see {log})" if code else None


def made_otherwise(run: Path, wanted: ResolvedPretrainConfig) -> list[str]:
    """The settings that a run was made with and a cell does not ask for, in words."""
    saved = saved_config(run)
    names = _differing(saved, wanted, RESUMABLE_FIELDS | {"recipe"})
    return [f"was made with {n} {getattr(saved, n)!r}, and the study says {getattr(wanted, n)!r}" for n in names]


def _check(study: Study, cell: Cell, run: Path) -> None:
    """A run that is there already was made with the study's settings."""
    if (run / CONFIG).exists() and (why := made_otherwise(run, study.config(cell))):
        raise ValueError(f"{run} {why[0]}: choose another --out")


def _differing(one: Any, other: Any, but: set[str]) -> list[str]:
    names = [field.name for field in fields(one) if field.name not in but]
    return [name for name in names if getattr(one, name) != getattr(other, name)]


def places(study: Study, jobs: int | None) -> list[dict[str, str]]:
    """What each of the runs at once is told about its share of the machine: a GPU, or some of the cores."""
    import torch

    asked: list[ResolvedPretrainConfig] = [study.config(cell) for cell in study.cells()]
    on_cpu = all(config.device == "cpu" for config in asked)
    if not on_cpu and torch.cuda.is_available():
        several = max(config.devices for config in asked)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        ids = visible.split(",")
        groups = [ids[start : start + several] for start in range(0, len(ids) - several + 1, several)] or [ids]
        count = len(groups) if jobs is None else jobs
        shares = [{"CUDA_VISIBLE_DEVICES": ",".join(groups[i % len(groups)])} for i in range(max(1, count))]
    else:
        bears = (
            1 if not on_cpu and torch.backends.mps.is_available() else min(cores(), memory("cpu") // MEMORY_OF_A_RUN)
        )
        shares = [{} for _ in range(max(1, bears if jobs is None else jobs))]
    threads = str(max(1, cores() // len(shares)))
    return [{"OMP_NUM_THREADS": threads, **share} for share in shares]
