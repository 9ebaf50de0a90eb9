"""A run that is killed and resumed ends with the weights of one that was not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from glf import checkpoint

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


@pytest.mark.parametrize("method", ["byol+adc", "simclr+lpm"])
def test_kill_and_resume_gives_the_same_weights(method: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(glf("--method", method, "--out", str(whole), *SETTINGS), check=True, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(glf("--method", method, "--out", str(killed), *SETTINGS), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (killed / "checkpoints" / "epoch-00002.ckpt").exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
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
