"""The other commands on an adapted run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from glf.cli import main
from glf.nn.weights import load_backbone


def glf(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command prints; verify and doctor end with an exit code if something is wrong."""
    main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def test_the_other_commands_take_an_adapted_run(
    few_images: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, run = tmp_path / "first", tmp_path / "run"
    small = f"--data {few_images} --device cpu --batch-size 32 --epochs 1 --val-images 32".split()
    plain = "--method simclr --backbone timm:test_resnet --image-size 32 --stem standard".split()
    glf(capsys, "pretrain", *small, *plain, "--out", first)
    glf(capsys, "adapt", f"run:{first}", *small, "--views", "2", "--no-choose", "--out", run)
    assert "too short to tell" in glf(capsys, "doctor", run)

    glf(capsys, "evaluate", run, "--suite", "knn", "fewshot", "geometry", "--device", "cpu")
    rows = json.loads((run / "result.json").read_text())["evaluation"]["rows"]
    assert {"pixels", "frozen", "trained"} <= rows.keys()
    assert "untrained" not in rows, "its network before training is the frozen encoder"
    assert {"knn", "nearest1", "logistic10"} <= rows["trained"].keys()
    glf(capsys, "evaluate", first, "--suite", "knn", "fewshot", "geometry", "--device", "cpu", "--no-references")
    alone = json.loads((first / "result.json").read_text())["evaluation"]["rows"]["trained"]
    assert {name: rows["frozen"][name] for name in alone} == alone
    assert rows["frozen"] != rows["trained"]
    assert "same" in glf(capsys, "verify", run)

    glf(capsys, "embed", run, few_images, "--out", tmp_path / "e.npy", "--device", "cpu")
    found = np.load(tmp_path / "e.npy")
    assert len(found) >= 160
    assert np.ptp(found, axis=0).max() > 0

    glf(capsys, "export", run, "--format", "timm", "--out", tmp_path / "exported")
    files = [path for path in (tmp_path / "exported").rglob("*") if path.suffix in (".safetensors", ".pth", ".bin")]
    exported = load_file(next(path for path in files if path.suffix == ".safetensors"))
    own = load_backbone(run).body.state_dict()
    assert torch.equal(exported["layer4.0.conv1.weight"], own["layer4.0.conv1.weight"])

    glf(capsys, "report", run, "--out", tmp_path / "page.html")
    assert "frozen" in (tmp_path / "page.html").read_text()
