"""Evaluation of a small real run: the table, the references, stored results, refused inputs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from rich.console import Console
from safetensors.torch import save_file
from sklearn.neighbors import KNeighborsClassifier

from glf.config.evaluation import EvaluateConfig, FinetuneOptions
from glf.data import sources
from glf.evaluation.suite import evaluate
from glf.result import read_result

Run = Callable[..., Path]
WITHOUT_LABELS = {"rank", "rank_me", "spread", "uniformity"}  # metrics that need no labels


@pytest.fixture
def tiny_set(tmp_path: Path) -> Path:
    """600 + 200 real images as an .npz, so that an evaluation takes a second."""
    train, test = sources.load_images("fashion-mini", "train"), sources.load_images("fashion-mini", "test")
    np.savez(
        tmp_path / "tiny.npz",
        train_images=train.pixels[:600], train_labels=train.targets[:600],
        test_images=test.pixels[:200], test_labels=test.targets[:200],
    )  # fmt: skip
    return tmp_path / "tiny.npz"


def test_the_table_of_pixels_untrained_and_trained(small_run: Run, tiny_set: Path, console: Console) -> None:
    run = small_run(data=str(tiny_set))
    found = evaluate(EvaluateConfig(run=run, probe_epochs=20), console)
    assert list(found["rows"]) == ["pixels", "untrained", "trained"]
    assert found["split"] == "test"
    assert {"knn5", "knn", "linear", "between", *WITHOUT_LABELS} < set(found["protocols"])
    train, test = sources.load_images(str(tiny_set)), sources.load_images(str(tiny_set), "test")
    flat = [images.pixels.reshape(len(images), -1) / 255.0 for images in (train, test)]
    theirs = KNeighborsClassifier(5).fit(flat[0], train.targets).score(flat[1], test.targets)
    assert found["rows"]["pixels"]["knn5"] == pytest.approx(theirs, abs=0.011)  # ties in float32
    assert json.loads((run / "result.json").read_text())["evaluation"]["rows"] == found["rows"]
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "k-NN (k = 5, Euclidean, majority vote)" in printed
    assert "k-NN (k = 20, cosine, temperature 0.07)" in printed
    assert "up to 32 px" in printed  # of pixels
    assert "simclr+lpm" in printed  # the method of the run
    assert found["methods"] == {"trained": "simclr+lpm"}
    detail = found["details"]["trained"]["knn5"]
    low, high = detail["interval"]
    assert low < found["rows"]["trained"]["knn5"] < high
    counts = np.bincount(test.targets, minlength=10)
    assert np.dot(detail["per_class"], counts) / 200 == pytest.approx(found["rows"]["trained"]["knn5"], abs=1e-4)


def test_a_second_evaluation_reads_cached_features_and_gives_the_same_numbers(
    small_run: Run, tiny_set: Path, console: Console
) -> None:
    run = small_run(data=str(tiny_set))
    config = EvaluateConfig(run=run, probe_epochs=5)
    first = evaluate(config, console)
    stamps = {path: path.stat().st_mtime_ns for path in (run / "features").iterdir()}
    assert len(stamps) == 6
    second = evaluate(config, console)
    assert second["rows"] == first["rows"]
    assert {path: path.stat().st_mtime_ns for path in (run / "features").iterdir()} == stamps


def test_without_a_test_split_the_held_out_part_is_named(small_run: Run, tmp_path: Path, console: Console) -> None:
    train = sources.load_images("fashion-mini")
    np.savez(tmp_path / "only.npz", images=train.pixels[:300], labels=train.targets[:300])
    run = small_run(data=str(tmp_path / "only.npz"), max_images=None)
    found = evaluate(EvaluateConfig(run=run, probe_epochs=2, references=False), console)
    assert found["split"] == "held-out part of train"
    assert (found["train"], found["test"]) == (268, 32)
    assert list(found["rows"]) == ["trained"]


def test_without_labels_only_the_geometry_is_measured(small_run: Run, tmp_path: Path, console: Console) -> None:
    np.save(tmp_path / "images.npy", sources.load_images("fashion-mini").pixels[:200])
    run = small_run(data=str(tmp_path / "images.npy"), max_images=None, val_images=0)
    found = evaluate(EvaluateConfig(run=run), console)
    assert set(found["rows"]["trained"]) == WITHOUT_LABELS
    assert "no labels" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_missing_run_is_named(tmp_path: Path, console: Console) -> None:
    with pytest.raises(FileNotFoundError, match=r"is .* the directory of a finished run"):
        evaluate(EvaluateConfig(run=tmp_path / "nothing"), console)


def test_evaluation_on_held_out_images_with_fewer_training_images(small_run: Run, console: Console) -> None:
    run = small_run()
    found = evaluate(EvaluateConfig(run=run, split="val", max_images=100, probe_epochs=5, references=False), console)
    assert (found["split"], found["train"], found["test"]) == ("held-out part of train", 100, 32)
    few = evaluate(EvaluateConfig(run=run, max_images=200, probe_epochs=5, references=False), console)
    assert (few["split"], few["train"], few["test"]) == ("test", 200, 2_000)
    with pytest.raises(
        ValueError, match="has no held-out training images for --split val: train with --val-images above 0"
    ):
        evaluate(EvaluateConfig(run=small_run(val_images=0, overwrite=True), split="val"), console)


def test_accuracies_are_not_measured_on_training_images(small_run: Run, tmp_path: Path, console: Console) -> None:
    images = sources.load_images("fashion-mini", "train")
    np.savez(tmp_path / "few.npz", train_images=images.pixels[:96], train_labels=images.targets[:96])
    run = small_run(data=str(tmp_path / "few.npz"), max_images=None, batch_size=32, val_images=0)
    found = evaluate(EvaluateConfig(run=run, references=False), console)
    assert found["split"] == "train"
    assert set(found["rows"]["trained"]) == WITHOUT_LABELS


def test_a_library_model_a_file_and_a_run_in_one_table(
    small_run: Run, tiny_set: Path, tmp_path: Path, console: Console
) -> None:
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "theirs.safetensors")
    run = small_run(data=str(tiny_set))
    config = EvaluateConfig(
        run=Path("timm:test_resnet"),
        weights=tmp_path / "theirs.safetensors",
        image_size=32,
        data=str(tiny_set),
        suite=("knn",),
        out=tmp_path / "foreign",
    )
    found = evaluate(config, console)
    assert list(found["rows"]) == ["pixels", "untrained", "trained"]
    assert json.loads((tmp_path / "foreign" / "result.json").read_text())["evaluation"]["rows"] == found["rows"]
    both = evaluate(EvaluateConfig(run=run, suite=("knn",), compare_with=(str(run / "backbone.safetensors"),)), console)
    assert both["rows"]["trained"] == both["rows"][str(run / "backbone.safetensors")]


def test_a_library_model_needs_images_and_weights(tiny_set: Path, console: Console, monkeypatch, tmp_path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ValueError, match="not on this machine: download them with --download"):
        evaluate(EvaluateConfig(run=Path("timm:test_resnet"), data=str(tiny_set)), console)
    with pytest.raises(
        ValueError,
        match=r"timm:tf_efficientnet_lite0 has no data .*: name the images to evaluate on with --data",
    ):
        evaluate(EvaluateConfig(run=Path("timm:tf_efficientnet_lite0")), console)


def test_weights_and_image_size_of_a_run_cannot_be_changed(small_run: Run, tmp_path: Path, console: Console) -> None:
    with pytest.raises(ValueError, match="--weights and --image-size only apply to timm: and torchvision: models"):
        evaluate(EvaluateConfig(run=small_run(), image_size=64), console)


def test_fewer_training_images_than_k(small_run: Run, tiny_set: Path, console: Console) -> None:
    run = small_run(data=str(tiny_set))
    found = evaluate(EvaluateConfig(run=run, max_images=10, probe_epochs=2, references=False), console)
    assert "knn" not in found["rows"]["trained"]
    assert {"knn5", "linear"} <= found["rows"]["trained"].keys()
    assert "temperature 0.07) n/a: 20 neighbours of 10 images: lower k to at most 10" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("test", "labels"), [(60, 1), (1, 10)])
def test_what_cannot_be_measured_is_named_and_the_rest_is_written(
    test: int, labels: int, small_run: Run, tmp_path: Path, console: Console
) -> None:
    """One class in the test part, or one test image."""
    train, other = sources.load_images("fashion-mini", "train"), sources.load_images("fashion-mini", "test")
    rows = np.flatnonzero(other.targets < labels)[:test]
    np.savez(
        tmp_path / "few.npz",
        train_images=train.pixels[:300], train_labels=train.targets[:300],
        test_images=other.pixels[rows], test_labels=other.targets[rows],
    )  # fmt: skip
    run, quick = small_run(data=str(tmp_path / "few.npz")), FinetuneOptions(finetune_epochs=1)
    found = evaluate(EvaluateConfig(run=run, suite=("all",), probe_epochs=2, finetune=quick), console)
    missing = found["missing"]["trained"]
    assert missing["separability: distance between class means"] == (
        f"all {test} samples are of one class: separability needs at least two"
    )
    values = found["rows"]["trained"]
    assert {"knn5", "knn", "linear", "logistic", "rank", "compactness"} <= values.keys()
    assert "separability" not in values
    assert all(np.isfinite(value) for value in values.values())
    assert read_result(run)["evaluation"]["missing"] == found["missing"]
    assert "n/a: all" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_class_without_training_images_is_named(small_run: Run, tmp_path: Path, console: Console) -> None:
    train, test = sources.load_images("fashion-mini", "train"), sources.load_images("fashion-mini", "test")
    keep = np.flatnonzero(train.targets[:600] != 9)
    np.savez(
        tmp_path / "part.npz",
        train_images=train.pixels[keep], train_labels=train.targets[keep],
        test_images=test.pixels[:100], test_labels=test.targets[:100],
    )  # fmt: skip
    run = small_run(data=str(tmp_path / "part.npz"), max_images=None)
    found = evaluate(EvaluateConfig(run=run, references=False, suite=("knn",)), console)
    assert "classes without training images, never predicted: 9" in console.file.getvalue()  # type: ignore[attr-defined]
    assert found["details"]["trained"]["knn5"]["per_class"][9] == 0


def test_one_class_only(small_run: Run, tmp_path: Path, console: Console) -> None:
    images = sources.load_images("fashion-mini", "train")
    np.savez(tmp_path / "one.npz", train_images=images.pixels[:150], train_labels=np.zeros(150, dtype=np.int64))
    run = small_run(data=str(tmp_path / "one.npz"), max_images=None, val_images=0)
    found = evaluate(EvaluateConfig(run=run, suite=("knn", "linear", "geometry")), console)
    assert set(found["rows"]["trained"]) == WITHOUT_LABELS
    assert "only one class: evaluations that need labels are left out" in console.file.getvalue()  # type: ignore[attr-defined]


def test_theory_without_and_with_labels(small_run: Run, tiny_set: Path, tmp_path: Path, console: Console) -> None:
    np.save(tmp_path / "images.npy", sources.load_images("fashion-mini").pixels[:200])
    bare = small_run(data=str(tmp_path / "images.npy"), max_images=None, val_images=0)
    found = evaluate(EvaluateConfig(run=bare, suite=("theory",), references=False), console)
    assert set(found["rows"]["trained"]) == {"alignment", "info_nce"}
    run = small_run(data=str(tiny_set), overwrite=True)
    found = evaluate(EvaluateConfig(run=run, suite=("theory",)), console)
    terms = found["rows"]["trained"]
    assert terms["bound"] == pytest.approx(terms["info_nce"] + terms["deviation"] + terms["log_ratio"], abs=2e-4)
    assert terms["slack"] == pytest.approx(terms["bound"] - terms["cross_entropy"], abs=2e-4)
    assert terms["proved_slack"] > 0
    assert len(found["details"]["trained"]["bound"]["not_computed"]) == 4
    again = evaluate(EvaluateConfig(run=run, suite=("theory",)), console)
    assert again["rows"] == found["rows"]


def test_evaluations_with_the_same_settings_are_merged(small_run: Run, tiny_set: Path, console: Console) -> None:
    run = small_run(data=str(tiny_set))
    evaluate(EvaluateConfig(run=run, suite=("knn",), references=False), console)
    evaluate(EvaluateConfig(run=run, suite=("geometry",)), console)  # now with references
    stored = json.loads((run / "result.json").read_text())["evaluation"]
    assert {"knn5", "rank"} <= stored["rows"]["trained"].keys()
    assert stored["config"]["suite"] == ["knn", "geometry"]
    assert set(stored["rows"]) == {"pixels", "untrained", "trained"}
    assert set(stored["protocols"]) == set(stored["rows"]["trained"])
    assert "interval" in stored["details"]["trained"]["knn5"]
    evaluate(EvaluateConfig(run=run, suite=("geometry",), references=False, max_images=100), console)
    assert "knn5" not in json.loads((run / "result.json").read_text())["evaluation"]["rows"]["trained"]
    small_run(data=str(tiny_set), resume=True)
    assert "evaluation" not in json.loads((run / "result.json").read_text()), "it belonged to other weights"


def test_evaluation_does_not_import_lightning_or_training() -> None:
    script = "import sys, glf.evaluation.suite; print([name for name in sys.modules if name.startswith(%r)])"
    unwanted = ("lightning", "pytorch_lightning", "torchmetrics", "glf.train")
    done = subprocess.run([sys.executable, "-c", script % (unwanted,)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_evaluation_of_another_run_is_not_replaced(
    small_run: Callable[..., Path], few_images: str, tmp_path: Path, console: Console
) -> None:
    run = small_run(data=few_images)
    before = (run / "result.json").read_bytes()
    with pytest.raises(ValueError, match="is another run, whose evaluation would be replaced: choose another --out"):
        evaluate(EvaluateConfig(run=run / "backbone.safetensors", data=few_images, suite=("knn",), out=run), console)
    assert (run / "result.json").read_bytes() == before
    spelt = run / ".." / run.name
    evaluate(EvaluateConfig(run=run, suite=("knn",), references=False, artifacts=False, out=spelt), console)
    assert read_result(run)["kind"] == "pretrain"
    assert "knn" in read_result(run)["evaluation"]["rows"]["trained"]
