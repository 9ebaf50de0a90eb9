"""The runs of a study: as many at once as the machine bears, each a process that can be killed and gone on with."""

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from glf import result
from glf.compare.study import Cell, Study
from glf.config import AdcOptions, EvaluateConfig, PretrainConfig, from_dict, to_dict
from glf.train.directory import LAST, saved_config

MEMORY_OF_A_RUN = 3 * 2**30  # a process with torch, its images and its activations, on a CPU
_NOT_LEARNT = ("out", "resume", "overwrite", "recipe")


def run_all(study: Study, out: Path, jobs: int | None, done: Callable[[Cell, str | None], None]) -> None:
    """Every cell that is not there yet; ``done`` hears of each, with what went wrong or None."""
    places = _places(jobs)
    free = list(places)
    lock = threading.Lock()

    def work(cell: Cell) -> tuple[Cell, str | None]:
        with lock:
            place = free.pop()
        try:
            return cell, _run(study, cell, out / cell.place, place)
        finally:
            with lock:
                free.append(place)

    with ThreadPoolExecutor(len(places)) as pool:
        waiting = {pool.submit(work, cell) for cell in study.cells()}
        try:
            while waiting:
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for one in finished:
                    done(*one.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def judged(run: Path) -> dict[str, Any] | None:
    """A run's result, once it has been judged."""
    content = result.read(run) if (run / result.FILE).exists() else {}
    return content if "evaluation" in content else None


def _run(study: Study, cell: Cell, run: Path, place: Mapping[str, str]) -> str | None:
    """Train and judge, from wherever an earlier attempt has got to; returns what went wrong."""
    with _alone(run) as held:
        wanted = study.config(cell)
        if (run / "config.json").exists():
            _same(saved_config(run), wanted, run)
        if judged(run) is not None:
            return None
        glf = [sys.executable, "-c", "import sys; from glf.cli import main; sys.argv[0] = 'glf'; main()"]
        how = "--resume" if (run / LAST).exists() else "--overwrite"
        # Pixels and the untrained network are judged once for each set of images and seed.
        first = (cell.method, cell.variant) == (study.methods[0], next(iter(study.variants)))
        judging = from_dict(EvaluateConfig, {**study.judging, "run": str(run), "references": first})
        commands = [
            [*glf, "pretrain", *flags(wanted), "--out", str(run), how],
            [*glf, "evaluate", str(run), *flags(judging)],
        ]
        if (run / result.FILE).exists():  # trained, and not judged
            del commands[0]
        for command in commands:
            ended = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, **place}, pass_fds=[held], check=False
            )
            if ended.returncode:
                lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
                return lines[-1]
    return None


@contextmanager
def _alone(run: Path) -> Iterator[int]:
    """Nobody else works on this run: the lock is the child's too, and outlives a parent that is killed."""
    run.parent.mkdir(parents=True, exist_ok=True)
    with open(run.with_name(f".{run.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _same(saved: PretrainConfig, wanted: PretrainConfig, run: Path) -> None:
    for field in fields(PretrainConfig):
        one, other = getattr(saved, field.name), getattr(wanted, field.name)
        if field.name not in _NOT_LEARNT and one != other:
            raise ValueError(f"{run} was made with {field.name} {one!r}, and the study says {other!r}: choose --out")


def flags(config: PretrainConfig | EvaluateConfig) -> list[str]:
    """The command line that says this configuration: what matters most, and whatever is not a default."""
    plain, usual = to_dict(config), {field.name: field.default for field in fields(config)}
    plain |= plain.pop("adc", {})
    usual |= to_dict(AdcOptions())
    found: list[str] = []
    for name, value in plain.items():
        flag = name.replace("_", "-")
        if name in ("recipe", "run") or (value == usual[name] and name not in ("method", "data", "seed")):
            continue
        if isinstance(usual[name], bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            found += [f"--{flag}", *(str(part) for item in value.items() for part in item)] if value else []
        else:
            found += [f"--{flag}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return found


def _places(jobs: int | None) -> list[dict[str, str]]:
    """What each run at once is told about its share of the machine: a GPU, or some of the cores."""
    import torch

    if torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        return [{"CUDA_VISIBLE_DEVICES": str(one % len(devices))} for one in range(jobs or len(devices))]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    count = jobs or max(1, min(cores, memory // MEMORY_OF_A_RUN))
    return [{"OMP_NUM_THREADS": str(max(1, cores // count))} for _ in range(count)]
