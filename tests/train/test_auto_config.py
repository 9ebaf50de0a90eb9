"""What is chosen where nothing is given: by real folders, and by machines of all kinds."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from glf.config.training import PretrainConfig, ResolvedPretrainConfig
from glf.data.sources import load
from glf.rundir import saved_config
from glf.train.auto_config import (
    DataFacts,
    activation_bytes,
    auto_configure,
    backbone_for,
    batch_size,
    image_size,
    prior,
)
from glf.train.progress import BUDGET, Remaining, StepTime, epochs
from glf.train.run import pretrain
from photos import write_photos

CPU = DataFacts(images=5_000, side=480, accelerator="cpu", cores=2, memory=24 * 2**30)
GPU = CPU._replace(accelerator="gpu", cores=16)


def small_files(folder: Path, count: int = 72) -> Path:
    """Square pictures of one size, without labels: quick to train on."""
    folder.mkdir()
    for i, pixels in enumerate(load("fashion-mini", "test").pixels[:count, :, :, 0]):
        Image.fromarray(pixels).save(folder / f"{i:03}.png")
    return folder


def test_photos_get_what_the_device_can_bear() -> None:
    assert image_size(CPU)[0] == 128
    assert image_size(GPU)[0] == 224
    assert image_size(GPU._replace(side=200))[0] == 192
    assert image_size(GPU._replace(side=40))[0] == 40
    assert backbone_for(CPU, 128)[0] == "regnetx_002"
    assert backbone_for(CPU, 40)[0] == "small_resnet"
    assert backbone_for(GPU, 224)[0] == "resnet18"
    assert backbone_for(GPU._replace(images=10**6), 224)[0] == "resnet50"


@pytest.mark.parametrize(
    ("images", "memory", "parts", "expected"),
    [(5_000, 24, 1, 128), (600, 24, 1, 64), (100, 24, 1, 32), (20, 24, 1, 8), (5_000, 1, 1, 16), (5_000, 24, 3, 126)],
)
def test_the_batch_goes_by_images_memory_and_devices(images: int, memory: int, parts: int, expected: int) -> None:
    found = CPU._replace(images=images, memory=memory * 2**30)
    assert batch_size(found, 10 * 2**20, parts)[0] == expected


def test_activations_are_counted_on_the_network_itself() -> None:
    config = PretrainConfig()
    small, large = (activation_bytes("small_resnet", size, config) for size in (64, 128))
    assert 3.5 < large / small < 4.5  # four times the cells
    assert small > 4 * 32 * 32 * 32  # the stem's map at least, in float32


def test_the_prior_is_never_fetched_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.setattr("glf.nn.pretrained.on_this_machine", lambda name: name in there)
    value, why = prior(CPU, download=False)
    assert value == "pixels"
    assert "--download" in why
    assert prior(CPU, download=True)[0].startswith("timm:")
    there.add("vit_base_patch16_clip_224.openai")
    assert prior(GPU, download=False)[0] == "timm:vit_base_patch16_clip_224.openai"
    assert prior(CPU, download=False)[0] == "pixels"  # a tower that takes a CPU hours


def test_what_is_given_counts_and_other_data_keep_their_defaults(tmp_path: Path) -> None:
    photos = str(write_photos(tmp_path / "camera"))
    needs = frozenset({"z"})
    free = auto_configure(PretrainConfig(data=photos, device="cpu"), needs)
    assert (free.config.image_size, free.config.backbone, free.config.augment) == (128, "regnetx_002", "gentle")
    assert free.epochs_open
    assert all(choice.why for choice in free.choices)
    given = auto_configure(
        PretrainConfig(data=photos, device="cpu", image_size=64, batch_size=4, epochs=3, lr=0.1), needs
    )
    assert {choice.name for choice in given.choices} == {"backbone", "augment"}
    assert (given.config.image_size, given.config.epochs, given.config.lr) == (64, 3, 0.1)
    fixed = [
        PretrainConfig(), PretrainConfig(data=photos, auto=False), PretrainConfig(data=photos, recipe="tiny"),
    ]  # fmt: skip
    for config in fixed:
        settled, choices, epochs_open, found = auto_configure(config, needs)
        assert not choices
        assert not epochs_open
        assert found is None
        assert settled == ResolvedPretrainConfig(
            **{name: value for name, value in vars(config).items() if value is not None}
        )


def test_epochs_fill_the_time_that_a_run_may_take() -> None:
    pace = StepTime(step=1.0, probe=5.0, steps=4)
    chosen = epochs(39, pace, "cpu").value
    assert chosen * pace.epoch(39) <= BUDGET["cpu"] < (chosen + 1) * pace.epoch(39)
    assert epochs(39, StepTime(0.001, 0.0, 4), "gpu").value == 200
    assert epochs(39, None, "gpu").value == 200
    assert epochs(5_000, StepTime(10.0, 0.0, 4), "cpu").value == 1


def test_what_is_left_is_told_by_what_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 20.0, 24.0])
    monkeypatch.setattr("glf.train.progress.time.perf_counter", lambda: next(now))
    remaining = Remaining(total=12)
    for done in (5, 6, 7):  # resumed after four; the slow first step does not count
        remaining.step(done)
    assert remaining.seconds == pytest.approx((24 - 10) / 2 * 5)
    assert str(remaining) == "35 s left"


def test_a_folder_and_nothing_else_and_the_same_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices are printed, logged and saved; the saved settings, all given, make the very same weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("glf.train.progress.MOST", 2)
    monkeypatch.setattr("glf.train.progress.FEWEST", 2)
    monkeypatch.setattr("glf.nn.pretrained.on_this_machine", lambda name: False)
    shown = Console(file=io.StringIO(), width=200)
    small_files(tmp_path / "photos")
    pretrain(PretrainConfig(data="photos", device="cpu"), shown)
    run = tmp_path / "runs" / "simclr-lpm-photos-0"
    printed, log = shown.file.getvalue(), (run / "train.log").read_text()  # type: ignore[attr-defined]
    saved = saved_config(run)
    assert (saved.image_size, saved.backbone, saved.batch_size, saved.prior, saved.epochs) == (
        28, "small_resnet", 32, "pixels", 2,
    )  # fmt: skip
    for name in ("image-size 28", "backbone small_resnet", "batch-size 32", "prior pixels", "epochs 2"):
        assert f"chosen    --{name}: " in printed
        assert f"chosen    --{name}: " in log
    assert "time      about" in printed
    assert json.loads((run / "result.json").read_text())["config"]["epochs"] == 2
    pretrain(replace(saved, out=tmp_path / "again"), shown)
    first, second = (load_file(place / "backbone.safetensors") for place in (run, tmp_path / "again"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert np.isfinite(float(first["conv1.weight"].sum()))
