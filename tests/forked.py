"""Processes of Python that need not import torch: they are forked from one that has imported it.

Importing torch, lightning and timm takes six seconds, which is most of the time that a small run takes. A forked
process has its own memory, signals and exit code like any other. Tests of the command line itself start real ones.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

IMPORTED = ["timm", "sklearn.linear_model", "glf.cli", "glf.train.run", "glf.evaluation.suite", "glf.reporting.page"]

Stream = int | IO[Any] | None  # as for subprocess


class Forked(subprocess.Popen[str]):
    """A process with text as its output, for the commands ``python -c CODE ...`` and ``python -m MODULE ...``."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        stdout: Stream = None,
        stderr: Stream = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = words = [str(word) for word in command]
        self.pipes: list[Path | None] = [
            _new_file() if given == subprocess.PIPE else None for given in (stdout, stderr)
        ]
        outputs = [str(pipe or _name(given)) for pipe, given in zip(self.pipes, (stdout, stderr), strict=True)]
        environment = dict(os.environ if env is None else env)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)  # when the first process starts, and the server with it
        self._process = context.Process(target=_run, args=(words, outputs, environment, start_new_session))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        """Wait for it; return what it has printed to pipes, to be asked for once."""
        self.wait(timeout)
        out, err = ("" if pipe is None else pipe.read_text() for pipe in self.pipes)
        for pipe in self.pipes:
            if pipe is not None:
                pipe.unlink()
        return out, err

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Like ``subprocess.run`` with captured text."""
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def _new_file() -> Path:
    number, path = tempfile.mkstemp()
    os.close(number)
    return Path(path)


def _name(given: Stream) -> str:
    """The file to print to: "" keeps what the process has, "1" is that of stdout."""
    if isinstance(given, int):
        return {subprocess.DEVNULL: os.devnull, subprocess.STDOUT: "1"}[given]
    return "" if given is None else str(given.name)


def _run(command: Sequence[str], outputs: Sequence[str], environment: Mapping[str, str], session: bool) -> None:
    """Become that process."""
    if session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background may be deaf to it
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, output in enumerate(outputs, start=1):
        if output == "1":
            os.dup2(1, descriptor)
        elif output:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, descriptor)
            os.close(file)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    multiprocessing.set_start_method(None, force=True)  # the default again: its own processes are no concern of ours
    kind, what, *arguments = [word for word in command[1:] if word != "-P"]
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, {"__name__": "__main__"})
