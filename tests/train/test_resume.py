"""A run that is killed and resumed ends with the weights of one that was not."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from glf import checkpoint
from glf.config import PretrainConfig
from glf.train import directory

SETTINGS = [
    "--limit",
    "320",
    "--batch-size",
    "64",
    "--epochs",
    "4",
    "--val-images",
    "64",
    "--log-every",
    "1",
    "--save-every",
    "1",
    "--keep",
    "9",
]


def glf(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from glf.cli import main; main()", "pretrain", *arguments]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("method", ["byol+adc", "simclr+lpm", "pcl+sphere"])
def test_kill_and_resume_gives_the_same_weights(method: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(glf("--method", method, "--out", str(whole), *SETTINGS), check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(glf("--method", method, "--out", str(killed), *SETTINGS), stdout=subprocess.DEVNULL)
    wait_for(killed / "checkpoints" / "epoch-00002.ckpt", process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed / "result.json").exists(), "the run was over before it was killed"
    subprocess.run(glf("--resume", "--out", str(killed)), check=True, stdout=subprocess.DEVNULL)
    a, b = (checkpoint.load(run / "checkpoints" / "last.ckpt") for run in (whole, killed))
    assert a["state_dict"].keys() == b["state_dict"].keys()
    assert all(torch.equal(a["state_dict"][k], b["state_dict"][k]) for k in a["state_dict"])
    assert a["lr_schedulers"] == b["lr_schedulers"]
    steps = [[line.partition(",")[0] for line in (run / "metrics.jsonl").open()] for run in (whole, killed)]
    assert steps[0] == steps[1], "metrics.jsonl has every step once"


def test_ctrl_c_ends_in_one_line_and_the_run_can_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    long = ["400" if before == "--epochs" else value for before, value in zip(["", *SETTINGS], SETTINGS, strict=False)]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a test run in the background may be deaf to it
    process = subprocess.Popen(
        glf("--out", str(run), *long), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=heard
    )
    wait_for(run / "checkpoints" / "last.ckpt", process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"--resume" in stderr
    assert b"Traceback" not in stderr
    assert checkpoint.load(run / "checkpoints" / "last.ckpt")["epoch"] >= 0


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    directory.write(tmp_path / "config.json", PretrainConfig(out=tmp_path))
    with pytest.raises(ValueError, match=r"no checkpoint yet .* --overwrite"):
        directory.settle(PretrainConfig(out=tmp_path, resume=True))
