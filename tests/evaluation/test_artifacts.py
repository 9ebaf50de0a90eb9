"""Data and thumbnails for the report, from a real run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from glf.config.evaluation import EvaluateConfig
from glf.data.sources import load_images
from glf.evaluation.suite import evaluate
from glf.nn.features import encode
from glf.nn.weights import load_backbone

Run = Callable[..., Path]


def evaluated(run: Path, console: Console, **settings: Any) -> dict[str, Any]:
    evaluate(EvaluateConfig(run=run, suite=("geometry",), **settings), console)
    content: dict[str, Any] = json.loads((run / "artifacts" / "report.json").read_text())
    return content


def tiles(path: Path, sheet: dict[str, int]) -> list[np.ndarray]:
    picture, side = np.asarray(Image.open(path).convert("L"), dtype=float), sheet["side"]
    places = [(i // sheet["columns"] * side, i % sheet["columns"] * side) for i in range(sheet["count"])]
    return [picture[y : y + side, x : x + side] for y, x in places]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal up to the losses of WebP."""
    return bool(np.abs(one - other.squeeze(-1)).mean() < 6)


def test_map_neighbours_views_and_outliers_show_the_right_images(
    few_images: str, small_run: Run, console: Console
) -> None:
    run = small_run(data=few_images, max_images=None, augment="gentle")
    found, folder = evaluated(run, console), run / "artifacts"
    train, test = load_images(few_images), load_images(few_images, "test")
    assert found["columns"].keys() == {"pixels", "untrained", "trained"}
    for column in found["columns"].values():
        assert sum(column["spectrum"]) == pytest.approx(1, abs=0.02)
        assert sum(column["similarity"]["same"]) == pytest.approx(1, abs=1e-3)

    shown = found["map"]
    assert shown["by"] == "class"
    assert shown["group"] == test.targets[shown["rows"]].tolist()
    points = np.array(shown["points"])
    assert points.shape == (60, 2)
    assert (np.ptp(points, 0).max(), points.min() >= 0, points.max() <= 1) == (pytest.approx(1, abs=1e-3), True, True)
    assert all(
        same(t, test.pixels[r]) for t, r in zip(tiles(folder / "map.webp", shown["sheet"]), shown["rows"], strict=True)
    )

    backbone = load_backbone(run)
    unit = []
    for images in (train, test):
        features = np.concatenate(list(encode(backbone, images, size=backbone.image_size)))
        unit.append(features / np.linalg.norm(features, axis=1, keepdims=True))
    pictures = iter(tiles(folder / "neighbours.webp", found["neighbours"]["sheet"]))
    assert len(found["neighbours"]["queries"]) == 12
    for query in found["neighbours"]["queries"]:
        cosine = unit[0] @ unit[1][query["row"]]
        assert query["class"] == test.classes[test.targets[query["row"]]]
        assert [near["row"] for near in query["near"]] == np.argsort(-cosine, kind="stable")[:8].tolist()
        assert query["near"][0]["similarity"] == pytest.approx(cosine.max(), abs=1e-3)
        assert same(next(pictures), test.pixels[query["row"]])
        assert all(same(next(pictures), train.pixels[near["row"]]) for near in query["near"])

    views = tiles(folder / "views.webp", found["views"]["sheet"])
    assert (found["views"]["recipe"], len(views)) == ("gentle", 6 * 7)
    for number, image in enumerate(found["views"]["images"]):
        assert same(views[7 * number], train.pixels[image["row"]])
        assert not all(same(view, train.pixels[image["row"]]) for view in views[7 * number + 1 : 7 * number + 7])

    outliers = found["outliers"]
    entropies = [one["entropy"] for one in outliers["found"]]
    assert entropies == sorted(entropies, reverse=True)
    assert entropies[0] < outliers["largest"] == pytest.approx(np.log(159), abs=1e-3)
    assert sum(outliers["histogram"]) == 160


def test_without_labels_the_map_is_coloured_by_cluster(few_images: str, small_run: Run, console: Console) -> None:
    run = small_run(data=few_images, max_images=None, labels="none", val_images=40)
    found = evaluated(run, console, references=False)
    assert found["map"]["by"] == "cluster"
    assert set(found["map"]["group"]) <= set(range(10))
    assert "similarity" not in found["columns"]["trained"]


def test_artifacts_can_be_turned_off(few_images: str, small_run: Run, console: Console) -> None:
    run = small_run(data=few_images, max_images=None)
    evaluate(EvaluateConfig(run=run, suite=("geometry",), artifacts=False, references=False), console)
    assert not (run / "artifacts").exists()


def test_a_figure_that_cannot_be_made_is_reported_and_left_out(
    few_images: str, small_run: Run, console: Console
) -> None:
    """The file of the prior was deleted; everything else is there."""
    rows = Path(few_images).with_name("prior.npy")
    np.save(rows, np.random.default_rng(0).normal(size=(160, 8)).astype(np.float32))
    run = small_run(data=few_images, max_images=None, prior=f"file:{rows}")
    rows.unlink()
    found = evaluated(run, console, references=False)
    assert found.keys() >= {"map", "neighbours", "views"}
    assert "outliers" not in found
    assert "no outliers for the report: no prior at" in console.file.getvalue()  # type: ignore[attr-defined]
