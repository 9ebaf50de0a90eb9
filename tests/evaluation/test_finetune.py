"""Fine-tuning on a fraction of the labels: the sample, the accuracy, and that the backbone is not changed."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from glf.config.evaluation import EvaluateConfig, FinetuneOptions
from glf.data import sources
from glf.data.images import ImageSet
from glf.evaluation.finetune import draw_indices, finetune, read_indices
from glf.evaluation.suite import evaluate
from glf.nn.backbone import Backbone

Run = Callable[..., Path]


@pytest.fixture(scope="module")
def train() -> ImageSet:
    return sources.load_images("fashion-mini", "train").select(np.arange(2_000))


@pytest.fixture(scope="module")
def test() -> ImageSet:
    return sources.load_images("fashion-mini", "test").select(np.arange(500))


def test_labels_are_a_stratified_sample_that_is_written_to_a_file(train: ImageSet, tmp_path: Path) -> None:
    rows = draw_indices(train, 0.1, 0, tmp_path / "labels.json")
    assert len(rows) == len(set(rows.tolist())) == 200
    share = np.bincount(train.targets[rows], minlength=10) / 200
    assert np.abs(share - np.bincount(train.targets, minlength=10) / 2_000).max() <= 1 / 200
    assert not np.array_equal(rows, draw_indices(train, 0.1, 1, tmp_path / "other.json"))
    assert np.array_equal(rows, draw_indices(train, 0.1, 0, tmp_path / "again.json"))
    assert np.array_equal(rows, read_indices(tmp_path / "labels.json", train))
    assert len(draw_indices(train, 0.001, 0, tmp_path / "few.json")) == 10, "one of each class at least"
    assert sorted(train.targets[draw_indices(train, 0.001, 0, tmp_path / "few.json")]) == list(range(10))


def test_indices_of_other_images_and_invalid_fractions_are_refused(
    train: ImageSet, test: ImageSet, tmp_path: Path
) -> None:
    draw_indices(train, 0.1, 0, tmp_path / "labels.json")
    with pytest.raises(ValueError, match="belong to other images than fashion-mini"):
        read_indices(tmp_path / "labels.json", test)
    (tmp_path / "no.json").write_text("rows")
    for name in ("no.json", "absent.json"):
        with pytest.raises(ValueError, match="is not a file of image indices written by glf evaluate"):
            read_indices(tmp_path / name, train)
    for share in (0, 1.5, -0.1):
        with pytest.raises(ValueError, match="a fraction of the labels must be above 0 and at most 1"):
            draw_indices(train, share, 0, tmp_path / "labels.json")


def test_it_learns_and_does_not_change_the_backbone(train: ImageSet, test: ImageSet) -> None:
    torch.manual_seed(0)
    backbone = Backbone("small_resnet", channels=1, image_size=28)
    before = copy.deepcopy(backbone.state_dict())
    options = FinetuneOptions(finetune_epochs=8, finetune_lr=0.05, finetune_batch=64)
    rows = np.arange(600)
    first = finetune(backbone, train, test, rows, options, seed=0)
    assert first.double().mean() > 0.6
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    short = FinetuneOptions(finetune_epochs=2, finetune_lr=0.1, finetune_batch=32)
    same = [finetune(backbone, train, test, rows[:256], short, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(same[0], same[1])
    assert not torch.equal(same[0], same[2])


def test_fine_tuning_as_part_of_the_suite(small_run: Run, console: Console) -> None:
    run = small_run()
    options = FinetuneOptions(fractions=(0.02,), finetune_epochs=1)
    found = evaluate(EvaluateConfig(run=run, suite=("finetune",), finetune=options, max_images=1_000), console)
    assert set(found["rows"]) == {"pixels", "untrained", "trained"}
    assert not found["rows"]["pixels"], "pixels have no weights"
    assert found["protocols"] == {"finetune_2": "fine-tuned on 2 % of the labels (5 epochs)"}
    assert "interval" in found["details"]["trained"]["finetune_2"]
    kept = run / "artifacts" / "labels-2-0.json"
    assert len(json.loads(kept.read_text())["rows"]) == 20
    again = FinetuneOptions(finetune_indices=kept, finetune_epochs=1)
    config = EvaluateConfig(run=run, suite=("finetune",), finetune=again, max_images=1_000, references=False)
    reused = evaluate(config, console)
    assert reused["rows"]["trained"]["finetune_given"] == found["rows"]["trained"]["finetune_2"]
