"""However many processes train a run, it is the same run."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glf.checkpoint import load_checkpoint
from glf.config.training import PretrainConfig
from glf.train.run import pretrain

METHODS = ("simclr+adc", "byol", "swav", "moco", "dino")
# Layer normalisation and float64: what is left of a difference is the order of sums.
CONFIG = PretrainConfig(
    backbone="timm:test_vit",
    image_size=16,
    stem="standard",
    max_images=160,
    batch_size=16,
    epochs=5,
    val_images=0,
    log_every=1,
    precision="64-true",
    device="cpu",
    workers=0,
    projector=(32, 16),
    projector_norm=False,
    predictor=(),  # a hidden layer would have batch normalisation
    prototypes=8,
    probe_every=5,
)


def config(method: str, out: Path) -> PretrainConfig:
    queue = {"queue": 48.0} if method == "moco" else {}
    return replace(CONFIG, method=method, out=out, options=queue)


def torchrun(*arguments: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "torch.distributed.run", *arguments]


def curve(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def start(commands: Sequence[Sequence[str | Path]]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    for process in processes:
        said, _ = process.communicate(timeout=400)
        assert process.returncode == 0, said


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of two processes, started by torchrun."""
    folder = tmp_path_factory.mktemp("two")
    start([torchrun("--standalone", "--nproc-per-node", "2", __file__, folder)])
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_have_the_curve_of_one(method: str, two: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    pretrain(config(method, one))
    expected, found = curve(one), curve(two / method)
    assert len(expected) == 50
    assert len(set(expected)) == 50, "every step has a loss of its own"
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-6, atol=0)
    states = [load_checkpoint(run / "checkpoints" / "last.ckpt")["state_dict"] for run in (one, two / method)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():  # queues, prototypes, the teacher
        torch.testing.assert_close(states[1][name], value, rtol=1e-5, atol=1e-7)


def test_two_nodes_are_one_run(tmp_path: Path) -> None:
    """Two launchers with a process each, as on two machines; and a step in parts beside it."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    short = replace(config("simclr+adc", tmp_path / "nodes"), epochs=1, nodes=2, accumulate=2)
    flags = "--nodes 2 --devices 1 --strategy ddp --accumulate 2 --epochs 1 --backbone timm:test_vit --image-size 16"
    flags += (
        " --max-images 160 --batch-size 16 --val-images 0 --log-every 1 --precision 64-true --device cpu --workers 0"
    )
    flags += " --stem standard --projector 32 16 --projector-norm False --method simclr+adc"
    flags += " --checkpoint-activations"
    common = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "localhost", "--master-port", str(port)]
    command = ["-m", "glf", "pretrain", *flags.split(), "--out", short.out]
    start([torchrun(*common, "--node-rank", str(node), *command) for node in range(2)])
    alone = replace(short, nodes=1, accumulate=1, out=tmp_path / "one")
    pretrain(alone)
    assert len(curve(tmp_path / "one")) == 10
    torch.testing.assert_close(
        torch.tensor(curve(tmp_path / "nodes")), torch.tensor(curve(tmp_path / "one")), rtol=1e-6, atol=0
    )
    one, nodes = (load_file(tmp_path / name / "backbone.safetensors") for name in ("one", "nodes"))
    for name, value in one.items():
        torch.testing.assert_close(nodes[name], value, rtol=1e-5, atol=1e-7)


if __name__ == "__main__":
    for name in METHODS:
        again = name in ("byol", "simclr+adc")  # activations that are computed again: the same curve
        pretrain(replace(config(name, Path(sys.argv[1]) / name), devices=2, checkpoint_activations=again))
