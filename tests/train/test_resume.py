"""A run that is killed or stopped and resumed ends as one that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader

import forked
from forked import Forked
from glf import rundir
from glf.checkpoint import load_checkpoint
from glf.config.training import PretrainConfig, with_defaults
from glf.data.batches import image_loader
from glf.runfiles import LAST
from glf.train.run import pretrain

SETTINGS = (
    "--backbone timm:test_resnet --image-size 16 --max-images 320 --batch-size 32 --epochs 3 --val-images 32"
    " --log-every 1 --device cpu --workers"
).split()
SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def glf(*arguments: str | Path) -> list[str | Path]:
    return [sys.executable, "-c", "from glf.cli import main; main()", "pretrain", *arguments]


def wait_for_steps(count: int, run: Path, process: Forked) -> None:
    deadline = time.monotonic() + 120
    path = run / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def soak(method: str, kills: int, *settings: str) -> None:
    program = f"import runpy; runpy.run_path({str(SOAK)!r}, run_name='__main__')"
    command = [sys.executable, "-c", program, "--kills", str(kills), "--method", method, *settings]
    done = forked.run(command, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert sum(found["kills"].values()) == kills
    assert found["differs"] == []


@pytest.mark.parametrize("method", ["byol", "moco"])
def test_three_kills_leave_no_trace(method: str) -> None:
    soak(method, 3, "--image-size", "16")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["byol+adc", "moco"])
def test_ten_kills_leave_no_trace(method: str) -> None:
    soak(method, 10)


@pytest.mark.parametrize(("method", "workers"), [("pcl+sphere", "0"), ("simclr+lpm", "2"), ("dino", "0")])
def test_sigterm_saves_in_the_middle_of_an_epoch(method: str, workers: str, tmp_path: Path) -> None:
    """Sent to all processes of the group, as batch systems do; the resumed run does not cluster again."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    options = ["--options", "clusters", "4"] if method.startswith("pcl") else []
    asked = ["--method", method, *SETTINGS, workers, *options]
    command = glf(*asked, "--out", stopped)
    process = Forked(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    wait_for_steps(12, stopped, process)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after step" in said
    assert f"glf pretrain --resume --out {stopped}" in said
    assert "Traceback" not in said
    assert not (stopped / "result.json").exists()
    saved = load_checkpoint(stopped / LAST)["global_step"]
    assert saved % 9, f"step {saved} is the end of an epoch"
    for command in (glf("--resume", "--out", stopped), glf(*asked, "--out", whole)):
        forked.run(command).check_returncode()
    a, b = (load_checkpoint(run / LAST) for run in (whole, stopped))
    assert a["state_dict"].keys() == b["state_dict"].keys()
    assert all(torch.equal(a["state_dict"][k], b["state_dict"][k]) for k in a["state_dict"])
    assert a["lr_schedulers"] == b["lr_schedulers"]
    steps = [
        [line.partition(",")[0] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (whole, stopped)
    ]
    assert steps[0] == steps[1], "metrics.jsonl has every step once"


def test_ctrl_c_ends_in_one_line_and_the_run_can_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = ["400" if before == "--epochs" else value for before, value in zip(["", *SETTINGS], SETTINGS, strict=False)]
    process = Forked(glf("--out", run, *long, "0"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for_steps(3, run, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped by SIGINT after step" in stderr
    assert "--resume" in stderr
    assert "Traceback" not in stderr
    assert load_checkpoint(run / LAST)["global_step"] >= 3


def test_a_signal_that_comes_before_the_first_step_is_heard(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the batches are prepared Lightning listens, and ends a run without saving it."""

    def terminated(*arguments: Any, **settings: Any) -> DataLoader[Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return image_loader(*arguments, **settings)

    monkeypatch.setattr("glf.train.inputs.image_loader", terminated)
    config = PretrainConfig(max_images=320, batch_size=32, epochs=2, val_images=32, device="cpu", out=tmp_path / "run")
    with pytest.raises(rundir.Stopped, match="stopped by SIGTERM after step 1, which is saved; continue with"):
        pretrain(config, console)
    assert load_checkpoint(tmp_path / "run" / LAST)["global_step"] == 1


def test_a_run_without_a_checkpoint_starts_again_with_its_saved_config(tmp_path: Path, console: Console) -> None:
    run = tmp_path / "run"
    run.mkdir()
    config = PretrainConfig(max_images=96, batch_size=32, epochs=1, val_images=32, image_size=16, device="cpu", out=run)
    rundir.write_config(run, with_defaults(config))
    result = pretrain(PretrainConfig(out=run, resume=True), console)
    assert result["config"]["max_images"] == 96
    assert load_checkpoint(run / LAST)["global_step"] == 2
