"""Whole runs on embedded images: every method with every constraint, and what a run leaves behind."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from glf import rundir
from glf.checkpoint import load_checkpoint
from glf.config.adc import AdcOptions
from glf.config.training import PretrainConfig
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS
from glf.data import sources
from glf.data.images import split_held_out
from glf.methods import METHODS, parse
from glf.nn.weights import load_backbone
from glf.runfiles import LAST
from glf.train.run import pretrain

Run = Callable[..., Path]


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# What makes every term of a row active within two small batches.
ACTIVE: dict[str, dict[str, Any]] = {
    "wmse": {"projector": (32, 16), "options": {"size": 32}},
    "pcl": {"options": {"clusters": 4, "warmup": 0, "queue": 64}},
    "lmcl": {"options": {"near": 0.0, "far": 1.0}},
    "emp": {"augment": "patches8"},
}
TRAINED = [f"{method}+{constraint}" for method in METHODS for constraint in ("none", "adc")]
TRAINED += [f"{method}+{constraint}" for method in ("simclr", "byol", "vicreg") for constraint in ("dcm", "lpm")]
TRAINED += [f"{method}+{law}" for method in ("align", "byol") for law in TARGET_DISTRIBUTIONS]


@pytest.mark.parametrize("spec", TRAINED)
def test_every_method_trains_with_and_without_constraints(spec: str, small_run: Run) -> None:
    method, constraint = spec.split("+")
    run = small_run(method=spec, **ACTIVE.get(method, {}))
    steps = [line for line in lines(run) if "loss" in line]
    assert len(steps) == 2
    terms = [f"{term.role}/{term.name}" for _, term in parse(spec).build().parts]
    for line in steps:
        assert all(math.isfinite(value) for value in line.values())
        assert line["loss"] == pytest.approx(sum(line[term] for term in terms), rel=1e-5)
        shares = [line[f"share/{term}"] for term in terms]
        assert sum(shares) == pytest.approx(1.0, rel=1e-5)
        assert min(shares) > 0, "a term without a gradient trains nothing"
    if constraint in ("lpm", "adc"):
        assert {"entropy/dat", "entropy/pre"} <= set(steps[0])
    if constraint in ("dcm", "adc"):
        assert {"entropy/cal", "entropy/dat", "sharpens/dcm"} <= set(steps[0])


@pytest.mark.parametrize(
    "method", ["swav", "byol+adc", "moco", "relicv2", "supcon", "dino", "nnclr", "lejepa", "tico", "diet", "vcreg"]
)
def test_small_crops_train(method: str, small_run: Run) -> None:
    steps = [line for line in lines(small_run(method=method, augment="multicrop")) if "loss" in line]
    assert len(steps) == 2
    assert all(math.isfinite(value) for line in steps for value in line.values())


@pytest.mark.parametrize(
    ("method", "words"), [("dcl", "DCL is defined for two views"), ("vicregl", "VICRegL is defined")]
)
def test_small_crops_are_refused_where_a_method_has_none(method: str, words: str, small_run: Run) -> None:
    with pytest.raises(ValueError, match=words):
        small_run(method=method, augment="multicrop")


@pytest.mark.parametrize("method", ["supcon", "supervised+adc", "vcreg"])
def test_labels_are_asked_for_by_methods_that_learn_from_them(method: str, small_run: Run) -> None:
    with pytest.raises(ValueError, match="needs labels, and fashion-mini has none"):
        small_run(method=method, labels="none", val_images=None)


@pytest.mark.parametrize("epochs", [1, 2])
def test_prototypes_are_frozen_for_an_epoch(epochs: int, small_run: Run) -> None:
    run = small_run(method="swav", epochs=epochs)
    weight = load_checkpoint(run / "checkpoints" / "last.ckpt")["state_dict"]["network.prototypes.weight"]
    untouched = torch.allclose(weight.norm(dim=1), torch.ones(len(weight)), atol=1e-6)  # as they are drawn
    assert untouched == (epochs == 1)


def test_callbacks_of_the_caller_come_after_our_own(tmp_path: Path, console: Console) -> None:
    written: list[int] = []

    class Reader(L.Callback):
        def on_train_batch_end(self, *_: object) -> None:
            written.append(len(lines(tmp_path / "run")))

    config = PretrainConfig(max_images=192, batch_size=64, epochs=1, log_every=1, val_images=0, out=tmp_path / "run")
    pretrain(config, console, callbacks=[Reader()])
    assert written == [1, 2, 3]


def test_what_a_run_leaves_behind(small_run: Run, console: Console) -> None:
    run = small_run(epochs=3, save_every=1, keep=2)
    names = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert names == {
        "config.json", "metrics.jsonl", "result.json", "skipped.txt", "backbone.safetensors", "train.log",
        "checkpoints/last.ckpt", "checkpoints/best.ckpt", "checkpoints/epoch-00002.ckpt",
        "checkpoints/epoch-00003.ckpt",
    }  # fmt: skip
    result = json.loads((run / "result.json").read_text())
    assert result["config"]["epochs"] == 3
    assert result["data"] | {"classes": 0, "key": 0} == {
        "name": "fashion-mini", "key": 0, "images": 10_000, "train": 128, "val": 32, "skipped": 0, "classes": 0,
    }  # fmt: skip
    probes = [line for line in lines(run) if "val/knn" in line]
    assert [line["epoch"] for line in probes] == [0, 1, 2]
    assert all(0 <= line["val/knn"] <= 1 and line["val/rank"] > 1 for line in probes)
    assert all(0.1 < line["val/linear"] <= 1 for line in probes), "above chance"
    last, best = (load_checkpoint(run / "checkpoints" / f"{name}.ckpt") for name in ("last", "best"))
    assert last["epoch"] == 2
    scores = [line["val/knn"] for line in probes]
    assert best["epoch"] == int(np.argmax(scores))
    body = load_backbone(run).body.state_dict()
    trained = {k.removeprefix("network.student.0.body."): v for k, v in last["state_dict"].items() if ".0.body." in k}
    assert all(torch.equal(value, trained[name]) for name, value in body.items())
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "images/s" in printed
    assert "data wait" in printed
    assert "healthy: effective rank" in printed
    assert "lr 0.0005 (0.002 x 64/256)" in printed
    assert "healthy: effective rank" in (run / "train.log").read_text()
    assert result["doctor"] == []


def test_the_validation_part_is_fixed_stratified_and_out_of_training() -> None:
    images = sources.load_images("fashion-mini")
    train, val = split_held_out(images, PretrainConfig(seed=3))
    again = split_held_out(images, PretrainConfig(seed=3))
    assert (train == again[0]).all()
    assert (val == again[1]).all()
    assert len(val) == 1_000
    assert len(train) == 9_000
    assert not set(train) & set(val)
    assert np.bincount(images.targets[val]).tolist() == [100] * 10
    assert (split_held_out(images, PretrainConfig(seed=4))[1] != val).any()


def test_a_seed_gives_the_same_weights_and_another_seed_others(small_run: Run, tmp_path: Path) -> None:
    runs = [small_run(seed=seed, out=tmp_path / str(i)) for i, seed in enumerate((5, 5, 6))]
    a, b, c = (load_backbone(run).body.state_dict() for run in runs)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(not torch.equal(a[k], c[k]) for k in a)


def test_base_and_constrained_start_from_the_same_weights_and_views(small_run: Run, tmp_path: Path) -> None:
    off = AdcOptions(nu=0.0, upsilon=0.0)
    base = small_run(method="simclr", out=tmp_path / "base")
    with_zero = small_run(method="simclr+adc", adc=off, out=tmp_path / "zero")
    a, b = (load_backbone(run).body.state_dict() for run in (base, with_zero))
    assert all(torch.allclose(a[k].double(), b[k].double(), atol=1e-6) for k in a)


def test_without_held_out_images_nothing_is_claimed_about_labels(small_run: Run) -> None:
    line = next(line for line in lines(small_run(val_images=0)) if "val/rank" in line)
    assert not {"val/knn", "val/linear"} & line.keys(), "images would be their own neighbours"


def test_a_dry_run_writes_nothing(small_run: Run, tmp_path: Path, console: Console) -> None:
    small_run(dry_run=True, out=tmp_path / "dry")
    assert not (tmp_path / "dry").exists()
    assert "wrote nothing" in console.file.getvalue()  # type: ignore[attr-defined]


def test_weights_start_from_a_file(small_run: Run, tmp_path: Path) -> None:
    first = small_run(out=tmp_path / "first")
    weights = first / "backbone.safetensors"
    second = small_run(weights=weights, lr=0.0, out=tmp_path / "second")
    a, b = (load_backbone(run).body for run in (first, second))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "simlcr"}, "did you mean 'simclr'"),
        ({"method": "byol+acd"}, "did you mean 'adc'"),
        ({"options": {"temprature": 1.0}}, "no option 'temprature' - did you mean 'temperature'"),
        ({"backbone": "resnet81"}, "unknown backbone 'resnet81' - did you mean"),
        ({"augment": "wsme"}, "did you mean 'wmse'"),
        ({"batch_size": 512}, r"a batch of 512 is larger than the data \(128 training images\)"),
        ({"max_images": 20_000}, "cannot draw 20000 of 10000"),
        ({"prior": "pixel"}, "unknown prior 'pixel' - did you mean 'pixels'"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"resume": True, "overwrite": True}, "choose one"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    settings: dict[str, object], message: str, small_run: Run, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        small_run(**settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prior": "imagenet"}, r"unknown prior 'imagenet' \(priors: pixels, timm:<model>"),
        ({"prior": "timm:resnet18x"}, "unknown timm model 'resnet18x' - did you mean"),
        ({"prior": "timm:test_resnet", "prior_weights": Path("no.pt")}, r"no weights at no\.pt: give a"),
        ({"prior": "run:no/run"}, "no backbone at no/run"),
        ({"prior": "file:no.npy"}, r"no prior at no\.npy: --prior file:<array> is an \.npy"),
        ({"weights": Path("no.pt")}, r"no weights at no\.pt: give a"),
    ],
)
def test_a_prior_or_weights_that_cannot_be_had_are_refused_before_images_are_looked_for(
    changed: dict[str, Any], message: str, console: Console
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrain(PretrainConfig(data="no/such/folder", **changed), console)


def test_an_existing_run_is_refused_resumed_or_overwritten(small_run: Run, tmp_path: Path) -> None:
    run = small_run()
    before = (run / "backbone.safetensors").read_bytes()
    with pytest.raises(ValueError, match="already exists: continue it with --resume"):
        small_run()
    with pytest.raises(ValueError, match="did you mean 'simclr'"):
        small_run(overwrite=True, method="simlcr")  # a mistake does not cost the old run
    assert (run / "backbone.safetensors").read_bytes() == before
    with pytest.raises(ValueError, match=r"seed was 0 .* cannot become 1 on resume"):
        small_run(resume=True, seed=1)
    small_run(overwrite=True, seed=1)
    assert (run / "backbone.safetensors").read_bytes() != before


def test_a_directory_that_is_no_run_is_never_deleted(small_run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="not a run directory"):
        small_run(overwrite=True)
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"


def test_resuming_another_versions_checkpoint_is_refused(small_run: Run) -> None:
    run = small_run()
    torch.save({"glf_schema": 0}, run / LAST)
    with pytest.raises(ValueError, match="has schema 0"):
        small_run(resume=True)


def test_a_folder_of_mixed_and_broken_photos(tmp_path: Path, console: Console) -> None:
    photos, rng = tmp_path / "photos", np.random.default_rng(0)
    photos.mkdir()
    for i in range(24):
        shape = (30 + i, 50 - i) if i % 3 else (40, 40, 3)
        Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(photos / f"{i}.png")
    (photos / "cut.jpg").write_bytes((photos / "0.png").read_bytes()[:60])
    (photos / "empty.png").touch()
    out = tmp_path / "run"
    config = PretrainConfig(
        data=str(photos), image_size=32, method="byol+adc", batch_size=8, epochs=1, out=out, log_every=1
    )
    result = pretrain(config, console)
    assert result["data"]["skipped"] == 2
    assert result["data"]["train"] == 24
    assert {line.split("\t")[0] for line in (out / "skipped.txt").read_text().splitlines()} == {"cut.jpg", "empty.png"}
    assert "val/knn" not in result["training"]
    assert result["training"]["val/rank"] > 0
    assert not (out / "checkpoints" / "best.ckpt").exists()
    assert "2 files skipped" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_prior_of_the_wrong_length_is_refused(small_run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "prior.npy", np.zeros((7, 3), np.float32))
    with pytest.raises(ValueError, match=r"shape \(7, 3\).*10000 images"):
        small_run(prior=f"file:{tmp_path / 'prior.npy'}")
    assert not (tmp_path / "run").exists()


def test_a_run_can_be_the_prior_of_another(small_run: Run, tmp_path: Path) -> None:
    first = small_run(method="simclr", out=tmp_path / "first")
    second = small_run(method="byol+lpm", prior=f"run:{first}", out=tmp_path / "second")
    assert next(line for line in lines(second) if "loss" in line)["constrain/lpm"]


def test_config_is_saved_and_read_back(small_run: Run) -> None:
    run = small_run(method="vicreg+dcm", projector=(64, 32))
    saved = rundir.read_config(run)
    assert (saved.method, saved.projector) == ("vicreg+dcm", (64, 32))
    (run / "config.json").write_text(json.dumps({"schema": rundir.SCHEMA, "epoch": 3}))
    with pytest.raises(ValueError, match=r"config.json: unknown configuration key 'epoch' - did you mean 'epochs'"):
        rundir.read_config(run)
    (run / "config.json").write_text(json.dumps({"views": "gentle"}))
    with pytest.raises(ValueError, match=r"another version of glf \(schema 1.*`python scripts/migrate.py .*run`"):
        rundir.read_config(run)
    assert replace(saved, resume=True).resume
