"""Artifacts of an adapted run: a second map with the frozen features, and the images whose neighbours changed most."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from evaluation.test_artifacts import same, tiles
from glf.adaptation.run import adapt
from glf.config.evaluation import EvaluateConfig
from glf.config.training import AdaptConfig
from glf.data.sources import load_images
from glf.evaluation.artifacts import turned_to
from glf.evaluation.suite import evaluate
from glf.nn.features import encode
from glf.nn.weights import load_backbone

Adapt = Callable[..., Path]


@pytest.fixture
def adapted(small_run: Callable[..., Path], few_images: str, tmp_path: Path, console: Console) -> Adapt:
    """Pretrain on a few images, adapt the backbone to the same ones with a high learning rate, and evaluate it."""

    def run(references: bool = True, **settings: Any) -> Path:
        start, out = small_run(data=few_images, max_images=None), tmp_path / "adapted"
        quick = {"epochs": 1, "views": 2, "batch_size": 64, "val_images": 32, "lr": 1e-2, "choose": False}
        adapt(AdaptConfig(encoder=f"run:{start}", data=few_images, out=out, **(quick | settings)), console)
        evaluate(EvaluateConfig(run=out, suite=("geometry",), references=references), console)
        return out

    return run


def content(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "artifacts" / "report.json").read_text())
    return found


def nearest(run: Path, data: str) -> np.ndarray:
    """The eight most similar training images of each test image, as a loop over encoders would find them."""
    backbone, unit = load_backbone(run), []
    for split in ("train", "test"):
        features = np.concatenate(list(encode(backbone, load_images(data, split), size=backbone.image_size)))
        unit.append(features / np.linalg.norm(features, axis=1, keepdims=True))
    return np.argsort(-(unit[1] @ unit[0].T), axis=1, kind="stable")[:, :8]


def test_map_and_neighbours_of_the_frozen_encoder(adapted: Adapt, few_images: str, tmp_path: Path) -> None:
    run = adapted()
    found, train, test = content(run), load_images(few_images), load_images(few_images, "test")
    assert found["columns"].keys() == {"pixels", "frozen", "trained"}
    before, after = (np.array(found[name]["points"]) for name in ("map_frozen", "map"))
    assert before.shape == after.shape == (60, 2)
    assert (before.min() >= 0, before.max() <= 1) == (True, True)
    assert np.abs(before - after).max() > 0.01

    changed, old, new = found["changed"], nearest(tmp_path / "run", few_images), nearest(run, few_images)
    kept = np.array([len(set(a) & set(b)) for a, b in zip(old, new, strict=True)])
    assert (changed["images"], changed["neighbours"], len(changed["queries"])) == (60, 8, 6)
    assert changed["kept"] == pytest.approx(kept.mean() / 8, abs=1e-3)
    assert changed["kept"] < 1
    assert [query["kept"] for query in changed["queries"]] == sorted(kept)[:6]
    pictures = iter(tiles(run / "artifacts" / "changed.webp", changed["sheet"]))
    assert changed["sheet"]["side"] <= 48
    for query in changed["queries"]:
        row = query["row"]
        assert query["class"] == test.classes[test.targets[row]]
        assert (query["kept"], [near["row"] for near in query["before"]]) == (kept[row], old[row].tolist())
        assert [near["row"] for near in query["after"]] == new[row].tolist()
        assert same(next(pictures), test.pixels[row])
        assert all(same(next(pictures), train.pixels[near["row"]]) for near in query["before"] + query["after"])


def test_without_the_frozen_encoder_there_is_nothing_to_compare(adapted: Adapt) -> None:
    assert not {"map_frozen", "changed"} & content(adapted(references=False)).keys()


def test_frozen_weights_that_were_kept_have_no_second_map(adapted: Adapt) -> None:
    """A learning rate of 0: the adapted weights are the frozen ones."""
    found = content(adapted(lr=0.0))
    assert "map" in found
    assert not {"map_frozen", "changed"} & found.keys()


def test_a_map_is_turned_to_another_one() -> None:
    points = np.random.default_rng(0).normal(size=(20, 2))
    angle = 2.0
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ np.diag([1, -1])
    np.testing.assert_allclose(turned_to(points @ turn + 3, points), points - points.mean(0), atol=1e-12)
