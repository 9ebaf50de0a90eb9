"""Annotated scenes for all tests of detection."""

from pathlib import Path

import pytest

from scenes import scenes, write_coco


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eight scenes to train on and three to test on, 96 px, in COCO's form."""
    write_coco(tmp_path / "ships", scenes(8, "train", 96), images="train2017", json_name="instances_train2017.json")
    write_coco(tmp_path / "ships", scenes(3, "test", 96), images="val2017", json_name="instances_val2017.json")
    return tmp_path / "ships"
