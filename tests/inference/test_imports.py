"""Embedding and searching start quickly: they import neither Lightning nor glf's training."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from glf.data.sources import load_images

COMMAND = """
import sys
from glf.cli import main

main(sys.argv[1:])
unwanted = ("lightning", "pytorch_lightning", "glf.train", "glf.evaluation", "glf.comparison")
print(sorted(name for name in sys.modules if name.startswith(unwanted)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, pixels in enumerate(load_images("fashion-mini", "test").pixels[:4, :, :, 0]):
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    return tmp_path


def run(*arguments: object) -> str:
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


def test_search_imports_no_training(folder: Path) -> None:
    assert run("search", "pixels", folder / "0.png", folder) == "[]"


def test_embed_imports_no_training(folder: Path) -> None:
    assert run("embed", "pixels", folder, "--out", folder / "e.npy") == "[]"


def test_outliers_imports_no_training(folder: Path) -> None:
    assert run("outliers", "pixels", folder, "--out", folder / "o.csv") == "[]"
