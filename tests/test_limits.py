"""Too few open files are said at the start, before any work; a limit that may be raised is raised."""

import sys
from pathlib import Path

import pytest

import forked
from glf.commands import COMMANDS

pytest.importorskip("resource")
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({}, {}))"
MAIN = "from glf.cli import main; main()"


@pytest.mark.parametrize(
    "command",
    [
        "pretrain --data pics --epochs 1 --batch-size 32 --workers 2 --store decode --out new",
        "adapt timm:test_resnet --data pics --out new",
        "evaluate pics --data pics",
        "embed pixels pics --out new.npy",
        "search pixels a.png pics --out new.csv",
        "outliers pixels pics --out new.csv",
        "shard pics --out new",
        "compare --methods simclr --out new",
    ],
)
def test_too_few_open_files_are_said_at_the_start(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = forked.run([sys.executable, "-c", f"{LIMITED.format(20, 20)}; {MAIN}", *command.split()], timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("glf: this process may open 20 files at once, and the command needs up to ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_limit_that_may_be_raised_is_raised() -> None:
    code = f"{LIMITED.format(20, 1000)}; from glf.files import require_open_files; require_open_files(500)"
    done = forked.run([sys.executable, "-c", f"{code}; print(resource.getrlimit(resource.RLIMIT_NOFILE))"])
    assert (done.returncode, done.stdout) == (0, "(1000, 1000)\n")


def test_what_is_needed_fits_into_the_usual_limit() -> None:
    from glf.commands import open_files

    for command in COMMANDS.values():
        if command.name in ("pretrain", "adapt"):
            assert 100 < open_files(command.config(workers=16)) < 1024
