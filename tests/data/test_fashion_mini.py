"""The bundled sample of Fashion-MNIST: its content, and the script that makes it."""

import runpy
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from glf.data.arrays import read_idx
from glf.data.datasets import DEBIAN
from glf.data.sources import load_images

REPO = Path(__file__).parents[2]
EMBEDDED = files("glf.data") / "embedded"


def test_it_is_small_and_has_its_licence() -> None:
    assert len((EMBEDDED / "fashion_mini.npz").read_bytes()) <= 6_000_000
    licence = (EMBEDDED / "FASHION-MNIST-LICENSE.txt").read_text()
    assert "Zalando SE" in licence
    assert "Permission is hereby granted, free of charge" in licence


@pytest.mark.parametrize(("split", "count"), [("train", 10_000), ("test", 2_000)])
def test_it_is_stratified_and_mixed(split: str, count: int) -> None:
    images = load_images("fashion-mini", split)  # type: ignore[arg-type]
    assert images.pixels.shape == (count, 28, 28, 1)
    assert np.bincount(images.targets).tolist() == [count // 10] * 10
    assert images.labelled
    assert images.classes[0] == "T-shirt/top"
    assert images.classes[9] == "Ankle boot"
    assert len(set(images.targets[:100].tolist())) == 10  # not sorted by class
    assert len({image.tobytes() for image in images.pixels}) > 0.999 * count


def test_it_has_not_changed() -> None:
    """A new sample would change every number measured on it."""
    assert load_images("fashion-mini").key == "70dcc5232dfc5b8d"
    assert load_images("fashion-mini", size=96).size == (28, 28)


def test_the_script_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not DEBIAN.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    out = tmp_path / "again.npz"
    monkeypatch.setattr(sys, "argv", ["make_fashion_mini.py", "--out", str(out)])
    runpy.run_path(str(REPO / "scripts" / "make_fashion_mini.py"), run_name="__main__")
    with np.load(out) as made, np.load(str(EMBEDDED / "fashion_mini.npz")) as embedded:
        assert sorted(made) == sorted(embedded)
        for name in made:
            np.testing.assert_array_equal(made[name], embedded[name])
    originals = read_idx(DEBIAN / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(DEBIAN / "t10k-labels-idx1-ubyte.gz")
    label = {image.tobytes(): number for image, number in zip(originals, labels, strict=True)}
    sample = load_images("fashion-mini", "test")
    assert [label[image.tobytes()] for image in sample.pixels] == sample.targets.tolist()
