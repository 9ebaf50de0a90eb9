"""What evaluation leaves for the report: the right images at the right places, on a real run."""

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

Run = Callable[..., Path]


def judged(run: Path, console: Console, **settings: Any) -> dict[str, Any]:
    evaluate(EvaluateConfig(run=run, suite=("geometry",), **settings), console)
    content: dict[str, Any] = json.loads((run / "artifacts" / "report.json").read_text())
    return content


def tiles(path: Path, sheet: dict[str, int]) -> list[np.ndarray]:
    picture, side = np.asarray(Image.open(path).convert("L"), dtype=float), sheet["side"]
    places = [(i // sheet["columns"] * side, i % sheet["columns"] * side) for i in range(sheet["count"])]
    return [picture[y : y + side, x : x + side] for y, x in places]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """But for what WebP loses."""
    return bool(np.abs(one - other.squeeze(-1)).mean() < 6)


def test_everything_is_where_it_belongs(few_images: str, small_run: Run, console: Console) -> None:
    run = small_run(data=few_images, max_images=None, augment="gentle")
    found, folder = judged(run, console), run / "artifacts"
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

    features = {len(np.load(path)): np.load(path) for path in (run / "features").glob("*.npy") if _is_backbones(path)}
    unit = {count: rows / np.linalg.norm(rows, axis=1, keepdims=True) for count, rows in features.items()}
    pictures = iter(tiles(folder / "neighbours.webp", found["neighbours"]["sheet"]))
    assert len(found["neighbours"]["queries"]) == 12
    for query in found["neighbours"]["queries"]:
        cosine = unit[160] @ unit[60][query["row"]]
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


def _is_backbones(path: Path) -> bool:
    """The trained one's: the last that was written of each set of images, which is 256 wide."""
    return np.load(path, mmap_mode="r").shape[1] == 256 and path in _latest(path.parent)


def _latest(folder: Path) -> list[Path]:
    by_count: dict[int, Path] = {}
    for path in sorted(folder.glob("*.npy"), key=lambda path: path.stat().st_mtime_ns):
        by_count[len(np.load(path, mmap_mode="r"))] = path
    return list(by_count.values())


def test_without_labels_the_map_is_coloured_by_cluster(few_images: str, small_run: Run, console: Console) -> None:
    run = small_run(data=few_images, max_images=None, labels="none", val_images=40)
    found = judged(run, console, references=False)
    assert found["map"]["by"] == "cluster"
    assert set(found["map"]["group"]) <= set(range(10))
    assert "similarity" not in found["columns"]["trained"]


def test_they_can_be_left_out(few_images: str, small_run: Run, console: Console) -> None:
    run = small_run(data=few_images, max_images=None)
    evaluate(EvaluateConfig(run=run, suite=("geometry",), artifacts=False, references=False), console)
    assert not (run / "artifacts").exists()


def test_what_cannot_be_made_is_left_out_and_said(few_images: str, small_run: Run, console: Console) -> None:
    """The prior's file is gone since: everything else is there."""
    rows = Path(few_images).with_name("prior.npy")
    np.save(rows, np.random.default_rng(0).normal(size=(160, 8)).astype(np.float32))
    run = small_run(data=few_images, max_images=None, prior=f"file:{rows}")
    rows.unlink()
    found = judged(run, console, references=False)
    assert found.keys() >= {"map", "neighbours", "views"}
    assert "outliers" not in found
    assert "no outliers for the report: no prior at" in console.file.getvalue()  # type: ignore[attr-defined]
