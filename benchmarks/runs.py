"""One run of a study: trained and judged by the command line, with one thread, and not again once it is done."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glf import result
from glf.train.directory import LAST


def read(run: Path) -> dict[str, Any] | None:
    """A run's result, if it has been judged."""
    content = result.read(run) if (run / result.FILE).exists() else {}
    return content if "evaluation" in content else None


def train_and_judge(run: Path, settings: Sequence[str], judging: Sequence[str] = ()) -> str | None:
    """`glf pretrain` and `glf evaluate`, continued where they were stopped; returns what went wrong."""
    if read(run) is not None:
        return None
    glf = str(Path(sys.executable).parent / "glf")
    how = "--resume" if (run / LAST).exists() else "--overwrite"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    train = [glf, "pretrain", *settings, "--out", str(run), how]
    for command in (train, [glf, "evaluate", str(run), *judging]):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return None
