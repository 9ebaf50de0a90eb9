"""One process per run, several at a time; a signal stops them all."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from glf.comparison.runs import check_run, evaluated_result
from glf.comparison.study import Cell, Study
from glf.config.base import to_dict
from glf.device import cores, memory
from glf.result import write_file
from glf.rundir import Stopped

MEMORY_PER_RUN = 3 * 2**30  # bytes, on a CPU: torch, the images and the activations
_POLL_SECONDS = 0.1
_SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []  # do not import modules from the current folder


def run_all(
    study: Study,
    cells: Iterable[Cell],
    out: Path,
    jobs: int | None,
    finished: Callable[[Cell, str | None], None],
    with_references: Set[Cell] = frozenset(),
) -> None:
    """Train and evaluate the cells that are not done yet; call ``finished`` with each cell and why it failed, if so.

    Cells in ``with_references`` also evaluate raw pixels and the untrained network, which takes minutes.
    """
    waiting = deque(cells)
    for cell in waiting:
        check_run(out / cell.path, study.config(cell))
    free = environments(study, jobs)
    running: dict[subprocess.Popen[bytes], tuple[Cell, dict[str, str]]] = {}
    with _signal_received() as received:
        try:
            while waiting or running:
                if number := received():
                    raise Stopped("stopped; run the same command again to resume", number)
                while waiting and free:
                    cell = waiting.popleft()
                    if evaluated_result(out / cell.path, study.evaluate_config(out / cell.path)) is not None:
                        finished(cell, None)
                        continue
                    environment = free.pop()
                    running[_start(study, cell, out, environment, cell in with_references)] = cell, environment
                for process in [process for process in running if process.poll() is not None]:
                    cell, environment = running.pop(process)
                    free.append(environment)
                    finished(cell, _failure(process.returncode, _log(out / cell.path)))
                time.sleep(_POLL_SECONDS)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def environments(study: Study, jobs: int | None) -> list[dict[str, str]]:
    """Environment variables of each simultaneous run: its GPUs, and its share of the threads.

    A smaller OMP_NUM_THREADS of this process is respected: others may need the remaining cores.
    """
    import torch

    configs = [study.config(cell) for cell in study.cells()]
    on_cpu = all(config.device == "cpu" for config in configs)
    if not on_cpu and torch.cuda.is_available():
        per_run = max(config.devices for config in configs)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        ids = visible.split(",")
        groups = [ids[start : start + per_run] for start in range(0, len(ids) - per_run + 1, per_run)] or [ids]
        count = len(groups) if jobs is None else jobs
        found = [{"CUDA_VISIBLE_DEVICES": ",".join(groups[i % len(groups)])} for i in range(max(1, count))]
    else:
        on_mps = not on_cpu and torch.backends.mps.is_available()
        most = 1 if on_mps else min(cores(), memory("cpu") // MEMORY_PER_RUN)
        found = [{} for _ in range(max(1, most if jobs is None else jobs))]
    threads = max(1, cores() // len(found))
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    if allowed.isdigit():
        threads = min(threads, max(1, int(allowed)))
    return [{"OMP_NUM_THREADS": str(threads), **variables} for variables in found]


@contextmanager
def _signal_received() -> Iterator[Callable[[], int]]:
    """Note SIGTERM and Ctrl-C instead of raising, so that no process is lost while it starts; 0 if none has come.

    A second signal has its usual effect.
    """
    received = 0
    if threading.current_thread() is not threading.main_thread():  # signals can only be handled there
        yield lambda: received
        return

    def note(number: int, frame: object) -> None:
        nonlocal received
        received = number
        restore()

    def restore() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)

    before = {one: signal.signal(one, note) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: received
    finally:
        restore()


def _start(
    study: Study, cell: Cell, out: Path, environment: dict[str, str], references: bool
) -> subprocess.Popen[bytes]:
    """Start the process of a cell; its job and its log are next to the run directory."""
    run = out / cell.path
    # The artifacts of one seed are enough to look at; they cost a few seconds per run.
    evaluation = study.evaluate_config(run, references=references, artifacts=cell.seed == 0)
    job = run.with_name(f".{run.name}.job.json")
    write_file(job, json.dumps({"pretrain": to_dict(study.config(cell)), "evaluate": to_dict(evaluation)}, indent=1))
    command = [sys.executable, *_SAFE_PATH, "-m", "glf.comparison.worker", str(job)]
    with open(_log(run), "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})


def _log(run: Path) -> Path:
    return run.with_name(f".{run.name}.log")


def _failure(code: int, log: Path) -> str | None:
    if code == 0:
        return None
    if code < 0:
        return f"ended by {signal.Signals(-code).name} (see {log})"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1] if lines else f'exit code {code}'} (see {log})"
