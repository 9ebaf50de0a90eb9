"""Shared by all tests: a cache of their own, and small runs."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from forked import Forked
from glf.config.training import PretrainConfig

# Tests work on tiny tensors, where a second thread costs more than it brings; processes that tests start do the same.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")


# Files that start many processes come first: a process that takes one of them last would keep the other waiting.
LONGEST = ("test_conduct.py", "test_resume.py", "test_cli.py", "test_distributed.py", "test_curves.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)  # stable: otherwise in the order of the files


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _called_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of a comparison sets sys.argv, which results and cards quote."""
    monkeypatch.setattr(sys, "argv", ["pytest"])


@pytest.fixture
def console() -> Console:
    """What a run prints, kept as text in console.file."""
    return Console(file=StringIO(), width=200, force_terminal=False)


@pytest.fixture
def small_run(tmp_path: Path, console: Console) -> Callable[..., Path]:
    """Pretrain on a few embedded images for a few steps; returns the run's directory."""
    from glf.train.run import pretrain

    def run(**settings: Any) -> Path:
        base = PretrainConfig(
            max_images=160, batch_size=64, epochs=1, log_every=1, val_images=32, auto=False, out=tmp_path / "run"
        )
        config = replace(base, **settings)
        pretrain(config, console)
        assert config.out is not None
        return config.out

    return run


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a comparison are processes that need not import torch."""
    from glf.comparison import processes

    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=Forked, STDOUT=subprocess.STDOUT))


@pytest.fixture
def few_images(tmp_path: Path) -> str:
    """A file of some embedded images, train and test, so that a run takes seconds."""
    from glf.data import sources

    path = tmp_path / "few.npz"
    arrays = {}
    for split, count in (("train", 160), ("test", 60)):
        source = sources.load_images("fashion-mini", split)
        arrays |= {f"{split}_images": source.pixels[:count], f"{split}_labels": source.targets[:count]}
    np.savez(path, **arrays)
    return str(path)
