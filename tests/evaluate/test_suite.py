"""Evaluation of a real small run: the table, the references, what is kept, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.neighbors import KNeighborsClassifier

from glf.config import EvaluateConfig
from glf.data import sources
from glf.evaluate.suite import Features, evaluate, evaluators

Run = Callable[..., Path]


@pytest.fixture
def tiny_set(tmp_path: Path) -> Path:
    """600 + 200 real images as an .npz, so that an evaluation takes a second."""
    train, test = sources.load("fashion-mini", "train"), sources.load("fashion-mini", "test")
    np.savez(
        tmp_path / "tiny.npz",
        train_images=train.pixels[:600], train_labels=train.targets[:600],
        test_images=test.pixels[:200], test_labels=test.targets[:200],
    )  # fmt: skip
    return tmp_path / "tiny.npz"


def test_the_table(small_run: Run, tiny_set: Path, console: Console) -> None:
    run = small_run(data=str(tiny_set))
    found = evaluate(EvaluateConfig(run=run, probe_epochs=20), console)
    assert list(found["rows"]) == ["pixels", "untrained", "trained"]
    assert found["split"] == "test"
    assert set(found["protocols"]) == {"knn5", "knn", "linear", "rank", "spread"}
    train, test = sources.load(str(tiny_set)), sources.load(str(tiny_set), "test")
    flat = [images.pixels.reshape(len(images), -1) / 255.0 for images in (train, test)]
    theirs = KNeighborsClassifier(5).fit(flat[0], train.targets).score(flat[1], test.targets)
    assert found["rows"]["pixels"]["knn5"] == pytest.approx(theirs, abs=0.011)  # ties in float32
    assert json.loads((run / "result.json").read_text())["evaluation"]["rows"] == found["rows"]
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "5-nn (Euclidean, majority)" in printed
    assert "k 20, temperature 0.07" in printed


def test_a_second_evaluation_reads_the_features_and_says_the_same(
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
    train = sources.load("fashion-mini")
    np.savez(tmp_path / "only.npz", images=train.pixels[:300], labels=train.targets[:300])
    run = small_run(data=str(tmp_path / "only.npz"), limit=None)
    found = evaluate(EvaluateConfig(run=run, probe_epochs=2, references=False), console)
    assert found["split"] == "held-out part of train"
    assert (found["train"], found["test"]) == (268, 32)
    assert list(found["rows"]) == ["trained"]


def test_without_labels_only_the_shape_is_judged(small_run: Run, tmp_path: Path, console: Console) -> None:
    np.save(tmp_path / "images.npy", sources.load("fashion-mini").pixels[:200])
    run = small_run(data=str(tmp_path / "images.npy"), limit=None, val_images=0)
    found = evaluate(EvaluateConfig(run=run), console)
    assert set(found["rows"]["trained"]) == {"rank", "spread"}
    assert "no labels" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_missing_run_is_named(tmp_path: Path, console: Console) -> None:
    with pytest.raises(FileNotFoundError, match=r"is .* the directory of a finished run"):
        evaluate(EvaluateConfig(run=tmp_path / "nothing"), console)


def test_judging_on_held_out_images_and_learning_from_some(small_run: Run, console: Console) -> None:
    run = small_run()
    found = evaluate(EvaluateConfig(run=run, split="val", limit=100, probe_epochs=5, references=False), console)
    assert (found["split"], found["train"], found["test"]) == ("held-out part of train", 100, 32)
    few = evaluate(EvaluateConfig(run=run, limit=200, probe_epochs=5, references=False), console)
    assert (few["split"], few["train"], few["test"]) == ("test", 200, 2_000)
    with pytest.raises(ValueError, match="held no training images out: train with --val-images"):
        evaluate(EvaluateConfig(run=small_run(val_images=0, overwrite=True), split="val"), console)


def test_labels_are_not_judged_on_the_images_they_were_learnt_from(
    small_run: Run, tmp_path: Path, console: Console
) -> None:
    images = sources.load("fashion-mini", "train")
    np.savez(tmp_path / "few.npz", train_images=images.pixels[:96], train_labels=images.targets[:96])
    run = small_run(data=str(tmp_path / "few.npz"), limit=None, batch_size=32, val_images=0)
    found = evaluate(EvaluateConfig(run=run, references=False), console)
    assert found["split"] == "train"
    assert set(found["rows"]["trained"]) == {"rank", "spread"}


def test_with_many_classes_the_best_five_count_too() -> None:
    logits = torch.tensor([[6.0, 5, 4, 3, 2, 1], [6.0, 5, 4, 3, 2, 1], [6.0, 5, 4, 3, 2, 1]])
    labels = torch.tensor([0, 4, 5])  # the best, among the best five, and not
    none = torch.zeros(0)
    features = Features(train=none, train_labels=none, test=none, test_labels=labels, logits=logits)
    config = EvaluateConfig(run=Path())
    found = {key: function(features, config) for key, (_, function) in evaluators(20).items() if "linear" in key}
    assert found == {"linear": 0.3333, "linear_top5": 0.6667}
    assert "linear_top5" not in evaluators(19)
