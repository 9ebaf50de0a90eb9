"""Two runs on one directory: the second is told who is there, whatever it asked for, and harms nothing."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from rich.console import Console

from glf import rundir
from glf.checkpoint import load_checkpoint, save_checkpoint
from glf.config.training import PretrainConfig, with_defaults
from glf.files import lock_path, partial_path
from glf.result import read_result, update_result
from glf.runfiles import LAST, LOCK, RESULT
from glf.train.run import pretrain

HOLD = """
import os, sys, time
from pathlib import Path
from glf.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1]) / "run"):
    if os.fork() == 0:  # like a worker, which outlives its run by some seconds
        time.sleep(float(sys.argv[2]))
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


def hold(out: Path, worker: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(out), str(worker)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def begun(out: Path, **settings: Any) -> Path:
    """A run's directory as it is after its first epoch."""
    config = rundir.resolve_directory(PretrainConfig(out=out, **settings))
    with rundir.create(with_defaults(config)) as made:
        assert made == out
        if not config.resume:
            save_checkpoint({"epoch": 0}, out / LAST)
    return out


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_another_process_is_named_until_it_is_killed(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = hold(run, worker=4)
    for how in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(BlockingIOError) as error:
            begun(run, **how)
        assert error.match(rf"^another run is writing to {run}: process {other.pid} on \S+; wait .* another --out$")
    assert {path: path.read_bytes() for path in before} == before
    other.send_signal(signal.SIGKILL)
    other.communicate()
    begun(run, overwrite=True)  # at once: forked workers do not hold the lock
    assert not lock_path(run / LOCK).exists()


class Second(L.Callback):
    """While the first run is at it, another one is started on its directory."""

    def __init__(self, config: PretrainConfig) -> None:
        self.config, self.told = config, list[str]()

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for how in ("resume", "overwrite"):
            config = PretrainConfig(**{**vars(self.config), how: True})
            with pytest.raises(BlockingIOError) as error:
                pretrain(config, Console(quiet=True))
            self.told.append(str(error.value))


def test_the_first_run_is_not_harmed_by_a_second(tmp_path: Path, console: Console) -> None:
    config = PretrainConfig(max_images=160, batch_size=64, epochs=1, val_images=32, out=tmp_path / "run")
    second = Second(config)
    assert pretrain(config, console, callbacks=[second])["training"]["val/rank"] > 0
    assert len(second.told) == 2
    assert all(f"process {os.getpid()}" in told for told in second.told)
    assert load_checkpoint(tmp_path / "run" / LAST)["epoch"] == 0
    assert not lock_path(tmp_path / "run" / LOCK).exists()


def test_a_directory_that_was_made_in_the_meantime_is_not_deleted(tmp_path: Path) -> None:
    """Both found nothing there, and one was slower to read its images."""
    slower = rundir.resolve_directory(PretrainConfig(out=tmp_path / "run"))
    run = begun(tmp_path / "run")
    with (
        pytest.raises(ValueError, match="was created by another run in the meantime"),
        rundir.create(with_defaults(slower)),
    ):
        pass
    assert load_checkpoint(run / LAST)["epoch"] == 0


def test_overwriting_deletes_what_glf_wrote_and_the_configuration_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(tmp_path / "run")
    (run / "features").symlink_to(tmp_path)
    (run / ".notes").touch()

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", interrupt)
        with pytest.raises(KeyboardInterrupt):
            begun(run, overwrite=True)
    assert rundir.read_config(run).method == PretrainConfig.method, "still a run: it can be overwritten"
    config = rundir.resolve_directory(PretrainConfig(out=run, overwrite=True, method="byol"))
    with rundir.create(with_defaults(config)):
        assert {path.name for path in run.iterdir()} == {"config.json", ".run.lock", ".notes"}
    assert rundir.read_config(run).method == "byol"
    assert {path.name for path in run.iterdir()} == {"config.json", ".notes"}
    assert tmp_path.is_dir()


def test_a_run_that_was_killed_at_once_left_nothing_that_is_in_the_way(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    partial_path(tmp_path / "config.json", int(ended.stdout)).touch()
    lock_path(tmp_path / "run").touch()
    with rundir.create(with_defaults(rundir.resolve_directory(PretrainConfig(out=tmp_path)))):
        assert {path.name for path in tmp_path.iterdir()} == {"config.json", ".run.lock"}


@pytest.mark.parametrize("out", [Path(os.devnull), Path(__file__), Path(__file__).parent])
def test_what_is_not_a_run_is_not_offered_for_overwriting(out: Path) -> None:
    with pytest.raises(ValueError, match="is not a run directory and is not overwritten: choose another --out"):
        rundir.resolve_directory(PretrainConfig(out=out))


def test_a_resumed_run_removes_what_a_kill_left(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    half = [partial_path(run / name, int(ended.stdout)) for name in (LAST, "result.json")]
    for path in half:
        path.touch()
    begun(run, resume=True)
    assert not any(path.exists() for path in half)
    assert (run / LAST).exists()


def test_two_that_add_to_a_result_at_once_lose_nothing(tmp_path: Path) -> None:
    def add(name: str) -> None:
        for i in range(5):
            update_result(tmp_path, **{f"{name}{i}": i})

    threads = [threading.Thread(target=add, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(read_result(tmp_path)) == 1 + 15
    assert [path.name for path in tmp_path.iterdir()] == [RESULT]
