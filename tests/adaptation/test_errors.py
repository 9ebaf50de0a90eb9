"""Mistakes of glf adapt end in one line that says what to do, before anything slow happens."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from glf.cli import main
from glf.nn.backbone import Backbone

SMALL = "--device cpu --max-images 96 --batch-size 16 --epochs 1 --val-images 16".split()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a command ends with."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("glf: ")
    assert said.count("\n") == 1, said
    return said


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Weights of a small model of timm, as torch.save writes them."""
    path = tmp_path / "weights.pth"
    torch.save(Backbone("timm:test_resnet", channels=3, image_size=160).body.state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ("timm:resnet81", "unknown timm model 'resnet81' - did you mean 'resnet"),
        ("resnet81", "unknown timm model 'resnet81' - did you mean 'resnet"),
        ("torchvision:resnet19", "unknown torchvision model 'resnet19' - did you mean 'resnet18'"),
        ("run:nowhere", "no backbone at nowhere: is nowhere the directory of a finished run?"),
        ("timm:resnet18", "the weights of timm:resnet18 are not on this machine: download them with --download"),
        ("resnet18", "the weights of timm:resnet18 are not on this machine: download them with --download"),
        ("torchvision:resnet18", "the weights of torchvision:resnet18 are not on this machine"),
    ],
)
def test_an_encoder_that_is_not_there(
    encoder: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is downloaded: there is no network in which it could be tried."""

    def no_network(*arguments: object) -> None:
        raise AssertionError("a connection was opened")

    for variable in ("HF_HUB_CACHE", "HF_HOME", "TORCH_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "empty"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("socket.socket.connect", no_network)
    assert words in refused(capsys, "adapt", encoder, *SMALL, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_needs_the_name_of_its_model(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "adapt", file, *SMALL, "--out", tmp_path / "run")
    assert f"{file} does not say which model it belongs to: name it with --backbone, such as resnet50" in said
    said = refused(capsys, "adapt", "timm:test_resnet", "--backbone", "test_resnet", *SMALL)
    assert "--backbone names the model of a file of weights, and timm:test_resnet already names one: drop it" in said
    said = refused(capsys, "adapt", tmp_path / "other.pth", "--backbone", "test_resnet", *SMALL)
    assert f"no weights at {tmp_path / 'other.pth'}: give a .safetensors, .pt, .pth or .ckpt file" in said
    said = refused(capsys, "adapt", file, "--backbone", "resnet18", *SMALL, "--out", tmp_path / "run")
    assert "lacks" in said
    assert "are these the weights of this --backbone?" in said
    assert not (tmp_path / "run").exists()


def test_a_file_with_the_name_of_its_model_is_adapted(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(w) for w in ("adapt", file, "--backbone", "test_resnet", "--image-size", "32", *SMALL, "--views", "2",
                           "--out", tmp_path / "run")])  # fmt: skip
    said = capsys.readouterr().out
    assert "encoder   timm:test_resnet at 32 px" in said
    assert "stages (layer4)" in said
    given = torch.load(file)["layer1.0.conv1.weight"]
    from safetensors.torch import load_file

    assert torch.equal(load_file(tmp_path / "run" / "backbone.safetensors")["layer1.0.conv1.weight"], given)


def test_colour_images_for_a_grey_encoder(encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3), np.uint8)
    np.savez(tmp_path / "colour.npz", train_images=pixels, train_labels=np.arange(120) % 3)
    said = refused(
        capsys, "adapt", encoder, "--data", tmp_path / "colour.npz", *SMALL, "--method", "simclr", "--out",
        tmp_path / "run",
    )  # fmt: skip
    assert "colour.npz is in colour, and run:" in said
    assert "takes 1 channel" in said
    assert not (tmp_path / "run").exists(), "it can be tried again with another encoder"


def test_runs_of_both_commands_are_not_mixed(encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    main(["adapt", encoder, *SMALL, "--views", "2", "--method", "simclr", "--out", str(run)])
    assert "80 images are few" in capsys.readouterr().out
    said = refused(capsys, "pretrain", "--resume", "--out", run)
    assert f"{run} is a run of glf adapt: continue it with glf adapt --resume --out {run}" in said
    pretrained = encoder.removeprefix("run:")
    said = refused(capsys, "adapt", "--resume", "--out", pretrained)
    assert f"is a run of glf pretrain: continue it with glf pretrain --resume --out {pretrained}" in said
    said = refused(capsys, "adapt", encoder, *SMALL, "--out", run)
    assert re.search(r"run already exists: continue it with --resume, replace it with --overwrite", said)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--image-size", "64"], "made for 16 px, and not for --image-size 64: leave it out"),
        (["--tail", "4"], "cannot be cut into a trunk and a tail (it has 4 stages, of which at least one stays frozen"),
        (["--method", "simclr+lpm", "--lpm-at", "bank", "--reading", "paper"], "reading='paper' has no bank"),
    ],
)
def test_options_that_make_no_sense(
    options: list[str], words: str, encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, "adapt", encoder, *SMALL, *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tail", "2", "--train", "all"], "--tail only applies to --train tail, not to --train all"),
        (["--head-share", "1"], "head_share must be below 1, got 1.0"),
        (["--views", "-1"], "views must be at least 0, got -1"),
        (["--l2sp", "-1"], "l2sp must be at least 0, got -1"),
        (["--prior", "pixels"], "--prior"),  # the encoder is the prior
    ],
)
def test_options_that_the_parser_refuses(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["adapt", "timm:resnet18", *options])
    assert end.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--weights some.pth", "--weights is for timm: and torchvision: encoders"),
        ("--l2sp 0.1 --precision 16-mixed", "--l2sp does not work with --precision 16-mixed"),
        ("--method supcon --labels none", "needs labels, and fashion-mini has none"),
    ],
)
def test_options_that_contradict_each_other(
    flags: str, words: str, encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, "adapt", encoder, *SMALL, "--out", tmp_path / "run", *flags.split())
    assert not (tmp_path / "run").exists()


def test_an_encoder_is_not_overwritten_by_its_own_adaptation(encoder: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(encoder.removeprefix("run:"))
    before = sorted(path.rglob("*"))
    assert "is the encoder's own directory" in refused(capsys, "adapt", encoder, *SMALL, "--out", path, "--overwrite")
    assert sorted(path.rglob("*")) == before


def test_statistics_and_norms_need_such_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "vit.pth"
    torch.save(Backbone("timm:test_vit", channels=3, image_size=160).body.state_dict(), weights)
    said = refused(
        capsys, "adapt", weights, "--backbone", "test_vit", *SMALL, "--norms", "data", "--out", tmp_path / "a"
    )
    assert "test_vit has no batch normalisation: drop --norms data" in said


def test_an_encoder_without_blocks_cannot_checkpoint_activations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, run = tmp_path / "weights.pth", tmp_path / "run"
    torch.save(Backbone("torchvision:alexnet", stem="standard").body.state_dict(), weights)
    asked = ("adapt", "torchvision:alexnet", "--weights", weights, "--train", "all", "--checkpoint-activations")
    said = refused(capsys, *asked, *SMALL, "--out", run)
    assert "alexnet has no blocks to checkpoint (its stages are single layers): drop --checkpoint-activations" in said
    assert not run.exists()
