"""Folders and tars of annotated images, and the images in them."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glf.evaluation.detect.run import read_boxes
from scenes import scenes, write_coco


def test_a_folder_and_its_tar_give_the_same_annotations(tmp_path: Path) -> None:
    write_coco(tmp_path / "ships", scenes(10, "train", side=96), images="images", json_name="instances.json")
    for around in (".", "ships"):  # with and without a top folder
        with tarfile.open(tmp_path / "ships.tar", "w") as tar:
            tar.add(tmp_path / "ships", arcname=around)
        for split, count in (("train", 8), ("test", 2)):
            folder, packed = read_boxes(tmp_path / "ships", split), read_boxes(tmp_path / "ships.tar", split)  # type: ignore[arg-type]
            assert len(folder) == len(packed) == count
            assert folder.key == packed.key
            np.testing.assert_array_equal(folder.pixels(0), packed.pixels(0))


def test_unknown_layouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        read_boxes(tmp_path / "nothing", "train")
    with pytest.raises(ValueError, match=r"has none of the known layouts: VOCdevkit"):
        read_boxes(tmp_path, "train")
    (tmp_path / "a.zip").touch()
    with pytest.raises(ValueError, match=r"neither a folder nor a \.tar"):
        read_boxes(tmp_path / "a.zip", "train")
    (tmp_path / "a.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(ValueError, match="cannot be read as an uncompressed tar"):
        read_boxes(tmp_path / "a.tar", "train")
    write_coco(tmp_path, scenes(2, "test", side=96), images="val2017", json_name="instances_val2017.json")
    with pytest.raises(ValueError, match=r"has no annotations/instances_train2017\.json"):
        read_boxes(tmp_path, "train")


def test_images_must_have_the_annotated_size(tmp_path: Path) -> None:
    write_coco(tmp_path, scenes(2, "train", side=96), images="images", json_name="instances.json")
    found = read_boxes(tmp_path, "train")
    path = tmp_path / found.scenes[0].name
    Image.new("RGB", (50, 40)).save(path)
    with pytest.raises(ValueError, match=r"\.png has 50 x 40 pixels, its annotation says 96 x 96: was it resized"):
        found.pixels(0)
    path.write_text("no image")
    with pytest.raises(ValueError, match=r"\.png cannot be read as an image"):
        found.pixels(0)
