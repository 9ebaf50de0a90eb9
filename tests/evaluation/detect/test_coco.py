"""COCO: published and own layouts, masks, and errors in the JSON file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco

from glf.evaluation.detect.annotations import Object
from glf.evaluation.detect.coco import decode_mask
from glf.evaluation.detect.run import read_boxes
from scenes import CLASSES, scenes, write_coco

OWN = "annotations/instances.json"


def test_coco_as_published(tmp_path: Path) -> None:
    made = {"train": scenes(4, "train", side=96), "test": scenes(3, "test", side=96)}
    for split, name in (("train", "train2017"), ("test", "val2017")):
        write_coco(tmp_path, made[split], images=name, json_name=f"instances_{name}.json")
    for split in ("train", "test"):
        found = read_boxes(tmp_path, split)  # type: ignore[arg-type]
        assert found.classes == tuple(CLASSES)
        assert len(found) == len(made[split])
        for row, (pixels, objects) in enumerate(made[split]):
            np.testing.assert_array_equal(found.pixels(row), pixels)
            assert [one.label for one in found.scenes[row].objects] == [label for label, _ in objects]
            for one, (_, shape) in zip(found.scenes[row].objects, objects, strict=True):
                ys, xs = np.nonzero(shape)
                assert one.box == (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
                np.testing.assert_array_equal(decode_mask(one, 96, 96), shape)


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("categories"), r"instances\.json has no list of categories: is it in COCO format"),
        (lambda c: c.update(images=[]), "the list of images in .* is empty"),
        (lambda c: c.update(annotations=[]), "no image of the train split of .* has an object"),
        (lambda c: c["images"][0].update(id=2), r"two entries of .* are image 2: ids must differ"),
        (lambda c: c["annotations"][0].update(id=2), "two entries of .* are annotation 2: ids must differ"),
        (lambda c: c["categories"][0].update(id=20), "two entries of .* are category 20: ids must differ"),
        (lambda c: c["annotations"][0].pop("id"), "annotation number 0 of .* has no integer id"),
        (lambda c: c["annotations"][0].update(category_id=7), "annotation 1 of .* the category 7; known are 10 20 30"),
        (lambda c: c["annotations"][0].update(image_id=99), "annotation 1 of .* has the image_id 99, which is not in"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 3]), r"annotation 1 of .* has the box \[1, 2, 3\], exp"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 3, "x"]), "annotation 1 of .* expected 4 numbers"),
        (lambda c: c["annotations"][0].pop("bbox"), "annotation 1 of .* has the box None"),
        (lambda c: c["images"][0].update(width=0), "image 1 of .* needs a file_name, and a width and height above 0"),
        (lambda c: c["images"][0].update(file_name="no.png"), r"1 of the 4 images .*: the first is images/no\.png"),
        (lambda c: c["images"][0].update(file_name="../x.png"), r"missing in .*: the first is images/\.\./x\.png"),
        (lambda c: [one.update(iscrowd=1) for one in c["annotations"]], "no image of the train split .* has an object"),
        (lambda c: (c.update(images=c["images"][:1]), c.update(annotations=[])), "has 1 annotated .* too few to"),
    ],
)  # fmt: skip
def test_errors_in_json_name_the_entry(tmp_path: Path, change: Change, message: str) -> None:
    content = write_coco(tmp_path, scenes(4, "train", side=96), images="images", json_name="instances.json")
    change(content)
    (tmp_path / OWN).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_boxes(tmp_path, "train")


def test_invalid_json_is_reported_with_its_line(tmp_path: Path) -> None:
    write_coco(tmp_path, scenes(2, "train", side=96), images="images", json_name="instances.json")
    (tmp_path / OWN).write_text('{\n"images": [],\n"annotations": [}\n')
    with pytest.raises(ValueError, match=r"instances\.json, line 3: not valid JSON \(Expecting value\)"):
        read_boxes(tmp_path, "train")
    (tmp_path / OWN).write_bytes(b'{"images": "\xff\xfe"}')
    with pytest.raises(ValueError, match=r"instances\.json is not valid JSON"):
        read_boxes(tmp_path, "train")


def test_boxes_over_the_border_are_clipped_and_empty_boxes_left_out(tmp_path: Path) -> None:
    content = write_coco(tmp_path, scenes(4, "train", side=96), images="images", json_name="instances.json")
    for changed in content["annotations"][:1]:
        changed["bbox"] = [10, 10, 0, 5]
    content["annotations"][1]["bbox"] = [80, 80, 40, 10]
    (tmp_path / OWN).write_text(json.dumps(content))
    found = read_boxes(tmp_path, "train")
    assert found.notes == (
        f"boxes over the border, clipped: 1, first annotation 2 of {OWN}",
        f"boxes empty or outside their image, left out: 1, first annotation 1 of {OWN}",
    )
    boxes = [one.box for s in ("train", "test") for scene in read_boxes(tmp_path, s).scenes for one in scene.objects]  # type: ignore[arg-type]
    assert (80, 80, 96, 90) in boxes
    assert len(boxes) == len(content["annotations"]) - 1


def test_masks_from_polygons_and_run_lengths() -> None:
    shape = np.zeros((12, 10), np.uint8)
    shape[2:7, 3:9] = 1
    packed = coco.encode(np.asfortranarray(shape))
    flat = shape.flatten(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *edges, flat.size]).tolist()  # run lengths down the columns, background first
    polygon = [3, 2, 9, 2, 9, 7, 3, 7]
    two = [[3, 2, 6, 2, 6, 7, 3, 7], [6, 2, 9, 2, 9, 7, 6, 7]]
    for segmentation in (
        [polygon],
        two,
        {"size": [12, 10], "counts": counts},
        {"size": [12, 10], "counts": packed["counts"]},
        {"size": [12, 10], "counts": packed["counts"].decode()},
    ):
        one = Object(name="a", box=(3, 2, 9, 7), label=1, segmentation=segmentation)
        np.testing.assert_array_equal(decode_mask(one, 12, 10), shape)


@pytest.mark.parametrize(
    "segmentation",
    [None, [], [[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]], {"size": [5, 5], "counts": [25]}, {"size": [12, 10]}],
)
def test_errors_in_segmentations_name_the_object(segmentation: Any) -> None:
    with pytest.raises(ValueError, match=r"annotation 3 has no usable segmentation, .*"):
        decode_mask(Object(name="annotation 3", box=(0, 0, 1, 1), label=1, segmentation=segmentation), 12, 10)
