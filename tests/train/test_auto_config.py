"""Automatic defaults: on real folders, and for machines of all kinds."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from glf.config.adc import AdcOptions
from glf.config.training import PretrainConfig, with_defaults
from glf.constrain.adc import LPM
from glf.data.sources import load_images
from glf.methods import method_of
from glf.recipes import apply_recipe
from glf.rundir import read_config
from glf.train.auto_config import (
    DataFacts,
    activation_bytes,
    adapt_hint,
    auto_configure,
    backbone_for,
    batch_size,
    epochs,
    image_size,
    prior,
)
from glf.train.progress import Remaining
from glf.train.resolve import resolve
from glf.train.run import pretrain
from photos import write_photos

CPU = DataFacts(images=5_000, side=480, accelerator="cpu", cores=2, memory=24 * 2**30)
GPU = CPU._replace(accelerator="gpu", cores=16)


def small_files(folder: Path, count: int = 72) -> Path:
    """Square pictures of one size, without labels: quick to train on."""
    folder.mkdir()
    for i, pixels in enumerate(load_images("fashion-mini", "test").pixels[:count, :, :, 0]):
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


def test_adapting_is_recommended_where_it_is_the_better_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.setattr("glf.train.auto_config.on_this_machine", lambda name: name in there)
    config = PretrainConfig(data="my photos")
    assert adapt_hint(config, CPU) is None, "no pretrained weights on this machine"
    there.add("resnet50.a1_in1k")
    for facts in (CPU, CPU._replace(images=10**6), GPU):
        assert "glf adapt timm:resnet50.a1_in1k --data 'my photos'" in (adapt_hint(config, facts) or "")
    assert adapt_hint(config, GPU._replace(images=10**6)) is None, "a GPU, and many images"
    assert adapt_hint(replace(config, weights=Path("mine.pth")), CPU) is None, "it starts from weights already"


def test_the_prior_is_never_fetched_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.setattr("glf.train.auto_config.on_this_machine", lambda name: name in there)
    value, why = prior(CPU, download=False)
    assert value == "pixels"
    assert "--download" in why
    assert prior(CPU, download=True)[0].startswith("timm:")
    there.add("vit_base_patch16_clip_224.openai")
    assert prior(GPU, download=False)[0] == "timm:vit_base_patch16_clip_224.openai"
    assert prior(CPU, download=False)[0] == "pixels"  # a tower that takes a CPU hours


@pytest.mark.parametrize(
    ("options", "place", "weight"),
    [
        ({"method": "simclr+lpm", "prior": "timm:resnet18"}, "bank", 10.0),
        ({"method": "byol+adc", "prior": "run:runs/a"}, "bank", 10.0),
        ({"method": "simclr+lpm", "prior": "timm:resnet18", "adc": AdcOptions(upsilon=0.5)}, "bank", 0.5),
        ({"method": "simclr+lpm", "prior": "pixels"}, None, 1.0),  # nearest pixels say little
        ({"method": "simclr+lpm", "prior": "timm:resnet18", "adc": AdcOptions(lpm_at="z")}, "z", 1.0),
        ({"method": "simclr+lpm", "prior": "timm:resnet18", "adc": AdcOptions(reading="paper")}, None, 1.0),
        ({"method": "simclr+dcm", "prior": "timm:resnet18"}, None, 1.0),
        ({"method": "xsample", "prior": "timm:resnet18"}, None, 1.0),  # reads a prior without LPM
    ],
)
def test_lpm_is_over_the_bank_if_the_prior_is_an_encoder(
    options: dict[str, Any], place: str | None, weight: float
) -> None:
    config = PretrainConfig(image_size=32, batch_size=8, **options)
    filled, choices = auto_configure(config, CPU, method_of(config).build())
    assert filled.adc.lpm_at == place
    assert with_defaults(filled).adc.upsilon == weight
    given = config.adc.lpm_at
    assert ("lpm_at" in {choice.name for choice in choices}) == (place is not None and given is None)
    lpm = [w for w, term in method_of(with_defaults(filled)).build().parts if isinstance(term, LPM)]
    assert len(lpm) == ("lpm" in config.method or "adc" in config.method)


def test_explicit_options_win_and_other_data_keep_the_fixed_defaults(tmp_path: Path) -> None:
    photos = str(write_photos(tmp_path / "camera"))
    free = resolve(PretrainConfig(data=photos, device="cpu", method="simclr", dry_run=True))
    assert (free.config.image_size, free.config.backbone, free.config.augment) == (128, "regnetx_002", "gentle")
    assert {choice.name for choice in free.choices} >= {"epochs", "batch_size", "lr"}
    assert all(choice.why for choice in free.choices)
    given = {"data": photos, "method": "simclr", "device": "cpu", "dry_run": True}
    some = resolve(PretrainConfig(**given, image_size=64, batch_size=4, epochs=3, lr=0.1))
    assert {choice.name for choice in some.choices} == {"backbone", "augment"}
    assert (some.config.image_size, some.config.epochs, some.config.lr) == (64, 3, 0.1)
    for options in ({"dry_run": True}, {**given, "auto": False}, {**given, "recipe": "tiny"}):
        config = PretrainConfig(**options)
        fixed = resolve(config)
        assert not fixed.choices
        assert fixed.source is None
        assert replace(fixed.config, out=None) == with_defaults(apply_recipe(config))


def test_a_table_of_photos_gets_the_defaults_of_their_folder(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    photos = write_photos(tmp_path / "camera")
    files = sorted(path for path in photos.rglob("*") if path.is_file())
    columns = {"image": [path.read_bytes() for path in files], "label": [path.parent.name for path in files]}
    pq.write_table(pa.table(columns), tmp_path / "camera.parquet")
    of_files, of_rows = (
        resolve(PretrainConfig(data=str(data), device="cpu", method="simclr", dry_run=True))
        for data in (photos, tmp_path / "camera.parquet")
    )
    assert of_rows.choices == of_files.choices
    assert of_rows.choices
    assert of_rows.source is not None
    assert of_rows.source.classes == ("boot", "coat")


def test_a_folder_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glf.data import sources

    small_files(tmp_path / "photos")
    calls: list[str] = []
    found = sources.find_source

    def counted(data: str, *arguments: object, **options: object) -> object:
        calls.append(data)
        return found(data, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("glf.data.sources.find_source", counted)
    monkeypatch.setattr("glf.train.resolve.find_source", counted)
    pretrain(PretrainConfig(data=str(tmp_path / "photos"), device="cpu", dry_run=True), Console(quiet=True))
    assert calls == [str(tmp_path / "photos")]


def test_epochs_follow_from_images_and_device_alone() -> None:
    assert epochs(CPU, 39)[0] == 26  # a thousand steps
    assert epochs(GPU, 39)[0] == 200
    assert epochs(GPU, 100)[0] == 100
    assert epochs(CPU, 5_000)[0] == 1


def test_what_is_left_is_told_by_what_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 20.0, 24.0])
    monkeypatch.setattr("glf.train.progress.time.perf_counter", lambda: next(now))
    remaining = Remaining(total=12)
    for done in (5, 6, 7):  # resumed after four; the slow first step does not count
        remaining.step(done)
    assert remaining.seconds == pytest.approx((24 - 10) / 2 * 5)
    assert str(remaining) == "35 s left"


def test_a_folder_and_nothing_else_and_the_same_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Automatic choices are printed, logged and saved; the saved config, given explicitly, trains the same weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("glf.train.auto_config.MOST_EPOCHS", 2)
    monkeypatch.setattr("glf.train.auto_config.on_this_machine", lambda name: False)
    shown = Console(file=io.StringIO(), width=200)
    small_files(tmp_path / "photos")
    pretrain(PretrainConfig(data="photos", device="cpu"), shown)
    run = tmp_path / "runs" / "simclr-lpm-photos-0"
    printed, log = shown.file.getvalue(), (run / "train.log").read_text()  # type: ignore[attr-defined]
    saved = read_config(run)
    assert (saved.image_size, saved.backbone, saved.batch_size, saved.prior, saved.epochs) == (
        28, "small_resnet", 32, "pixels", 2,
    )  # fmt: skip
    for name in ("image-size 28", "backbone small_resnet", "batch-size 32", "prior pixels", "epochs 2"):
        assert f"auto      --{name}: " in printed
        assert f"auto      --{name}: " in log
    assert json.loads((run / "result.json").read_text())["config"]["epochs"] == 2
    pretrain(replace(saved, out=tmp_path / "again"), shown)
    first, second = (load_file(place / "backbone.safetensors") for place in (run, tmp_path / "again"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert np.isfinite(float(first["conv1.weight"].sum()))
