"""Annotated images in every form that is known, and everything that can be wrong with them."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from glf.evaluation.detect.annotations import Object
from glf.evaluation.detect.coco import mask
from glf.evaluation.detect.read import read_boxes
from scenes import CLASSES, scenes, write_coco

PLAIN = "annotations/instances.json"


def xml(objects: str = "", width: int = 60, height: int = 50) -> str:
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation>\n{size}\n{objects}\n</annotation>"


def thing(name: str, box: tuple[float, ...], difficult: int = 0) -> str:
    sides = "".join(
        f"<{side}>{value}</{side}>" for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    )
    return f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{sides}</bndbox></object>"


def voc(root: Path, files: dict[str, str], lists: dict[str, list[str]], images: str = "JPEGImages") -> Path:
    for name, text in files.items():
        for folder, ending in (("Annotations", "xml"), (images, "jpg")):
            (root / folder).mkdir(parents=True, exist_ok=True)
            path = root / folder / f"{name}.{ending}"
            if ending == "xml":
                path.write_text(text)
            else:
                Image.new("RGB", (60, 50)).save(path)
    for split, names in lists.items():
        (root / "ImageSets" / "Main").mkdir(parents=True, exist_ok=True)
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
    return root


DOG, CAT = thing("dog", (11, 6, 40, 30)), thing("cat", (1, 1, 60, 50), difficult=1)


def test_voc_as_published(tmp_path: Path) -> None:
    files = {"000001": xml(DOG + CAT), "000002": xml(), "000003": xml(thing("dog", (2, 2, 9, 9)))}
    voc(tmp_path / "VOCdevkit" / "VOC2007", files, {"trainval": ["000001", "000002"], "test": ["000003"]})
    for path in (tmp_path, tmp_path / "VOCdevkit", tmp_path / "VOCdevkit" / "VOC2007"):
        train, test = read_boxes(path, "train"), read_boxes(path, "test")
        assert train.classes == test.classes == ("cat", "dog")
        assert [Path(scene.name).name for scene in train.scenes] == ["000001.jpg", "000002.jpg"]
        dog, cat = train.scenes[0].objects
        assert (dog.box, dog.label, dog.ignored) == ((10, 5, 40, 30), 2, False)  # the first pixel is 1, the last inside
        assert (cat.box, cat.label, cat.ignored) == ((0, 0, 60, 50), 1, True)
        assert (train.objects, test.objects, train.notes) == (1, 1, ())
        assert train.scenes[1].boxes.shape == (0, 4)
        assert train.pixels(0).shape == (50, 60, 3)


def test_two_years_of_voc_are_one_set_and_only_the_tested_year_is_tested(tmp_path: Path) -> None:
    voc(tmp_path / "VOC2007", {"1": xml(DOG), "2": xml(DOG)}, {"trainval": ["1"], "test": ["2"]})
    voc(tmp_path / "VOC2012", {"3": xml(DOG)}, {"trainval": ["3"], "train": ["3"], "val": []})
    assert [s.name for s in read_boxes(tmp_path, "train").scenes] == [
        "VOC2007/JPEGImages/1.jpg",
        "VOC2012/JPEGImages/3.jpg",
    ]
    assert [s.name for s in read_boxes(tmp_path, "test").scenes] == ["VOC2007/JPEGImages/2.jpg"]


def test_voc_without_a_test_list_is_judged_on_val(tmp_path: Path) -> None:
    voc(tmp_path, {"1": xml(DOG), "2": xml(DOG)}, {"train": ["1"], "val": ["2"], "trainval": ["1", "2"]})
    assert [s.name for s in read_boxes(tmp_path, "train").scenes] == ["JPEGImages/1.jpg"]
    assert [s.name for s in read_boxes(tmp_path, "test").scenes] == ["JPEGImages/2.jpg"]


def test_own_xml_without_lists_is_divided_by_the_seed(tmp_path: Path) -> None:
    voc(tmp_path, {f"ship{i}": xml(DOG) for i in range(10)}, {}, images="images")
    splits = {seed: [read_boxes(tmp_path, split, seed=seed) for split in ("train", "test")] for seed in (0, 1)}
    for train, test in splits.values():
        names = [scene.name for scene in (*train.scenes, *test.scenes)]
        assert (len(train), len(test), len(set(names))) == (8, 2, 10)
    assert splits[0][0].key == read_boxes(tmp_path, "train", seed=0).key != splits[1][0].key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation>\n<object>\n</annotation>", r"1\.xml, line 3: no XML \(mismatched tag"),
        ("", r"1\.xml, line 1: no XML"),
        ("<annotation></annotation>", r"1\.xml does not say the image's size"),
        (xml(DOG, width=0), r"1\.xml does not say the image's size"),
        (xml(thing("", (1, 1, 5, 5))), r"object 1 of Annotations/1\.xml in .* has no <name>"),
        (
            xml(DOG + thing("cat", (1, 1, 5, 5)).replace("<ymax>5</ymax>", "<ymax>five</ymax>")),
            r"object 2 of .*1\.xml in .* has the box \['1', '1', '5', 'five'\]",
        ),
        (xml(thing("dog", (1, 1, 5, float("nan")))), "expected 4 numbers"),
        (xml(thing("dog", (1, 1, 5, 5)).replace("bndbox", "box")), r"\[None, None, None, None\], expected 4 numbers"),
        (xml(thing("dog", (1, 1, 9, 9), difficult=1)), "no image of the train split of .* has an object"),
        (xml(), "no image of the train split of .* has an object"),
    ],
)
def test_broken_xml(tmp_path: Path, text: str, message: str) -> None:
    voc(tmp_path, {"1": text, "2": xml(DOG)}, {"trainval": ["1"], "test": ["2"]})
    with pytest.raises(ValueError, match=message):
        read_boxes(tmp_path, "train")


def test_broken_lists(tmp_path: Path) -> None:
    root = voc(tmp_path, {"1": xml(DOG), "2": xml(DOG)}, {"trainval": ["1", "2", "1"], "test": ["2"]})
    with pytest.raises(ValueError, match=r"trainval\.txt names 1 twice"):
        read_boxes(root, "train")
    voc(tmp_path, {}, {"trainval": ["1", "7"]})
    with pytest.raises(ValueError, match=r"trainval\.txt names 1 images without XML in Annotations: 7"):
        read_boxes(root, "train")
    voc(tmp_path, {}, {"trainval": []})
    with pytest.raises(ValueError, match=r"trainval\.txt is empty"):
        read_boxes(root, "train")
    (root / "ImageSets" / "Main" / "trainval.txt").unlink()
    with pytest.raises(ValueError, match=r"has no ImageSets/Main/trainval\.txt: it has ImageSets/Main/test\.txt"):
        read_boxes(root, "train")
    voc(tmp_path, {}, {"trainval": ["1"]})
    (root / "JPEGImages" / "1.jpg").unlink()
    with pytest.raises(ValueError, match=r"1 of the 1 images that Annotations names are missing .*JPEGImages/1\.jpg"):
        read_boxes(root, "train")


def test_boxes_over_the_border_are_clipped_and_empty_ones_left_out_and_both_are_counted(tmp_path: Path) -> None:
    over, rounded = thing("dog", (-4, 5, 20, 70)), thing("dog", (1, 1, 61, 50))
    outside, empty = thing("dog", (70, 5, 90, 20)), thing("dog", (30, 20, 20, 40))
    voc(tmp_path, {"1": xml(over + rounded + outside + empty), "2": xml(DOG)}, {"trainval": ["1"], "test": ["2"]})
    train = read_boxes(tmp_path, "train")
    assert [one.box for one in train.scenes[0].objects] == [(0, 4, 20, 50), (0, 0, 60, 50)]
    assert train.notes == (
        "boxes over the border, clipped: 1, first object 1 of Annotations/1.xml",
        "boxes empty or outside their image, left out: 2, first object 3 of Annotations/1.xml",
    )
    assert read_boxes(tmp_path, "test").notes == ()


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
                np.testing.assert_array_equal(mask(one, 96, 96), shape)


def test_own_json_in_a_folder_and_in_a_tar_is_the_same(tmp_path: Path) -> None:
    write_coco(tmp_path / "ships", scenes(10, "train", side=96), images="images", json_name="instances.json")
    for around in (".", "ships"):  # with and without a folder around everything
        with tarfile.open(tmp_path / "ships.tar", "w") as tar:
            tar.add(tmp_path / "ships", arcname=around)
        for split, count in (("train", 8), ("test", 2)):
            folder, packed = read_boxes(tmp_path / "ships", split), read_boxes(tmp_path / "ships.tar", split)  # type: ignore[arg-type]
            assert len(folder) == len(packed) == count
            assert folder.key == packed.key
            np.testing.assert_array_equal(folder.pixels(0), packed.pixels(0))


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("categories"), r"instances\.json has no list of categories: is it in COCO's form"),
        (lambda c: c.update(images=[]), "the list of images in .* is empty"),
        (lambda c: c.update(annotations=[]), "no image of the train split of .* has an object"),
        (lambda c: c["images"][0].update(id=2), r"two entries of .* are image 2: ids must differ"),
        (lambda c: c["annotations"][0].update(id=2), "two entries of .* are annotation 2: ids must differ"),
        (lambda c: c["categories"][0].update(id=20), "two entries of .* are category 20: ids must differ"),
        (lambda c: c["annotations"][0].pop("id"), "annotation number 0 of .* has no id that is a whole number"),
        (lambda c: c["annotations"][0].update(category_id=7), "annotation 1 of .* the category 7; known are 10 20 30"),
        (lambda c: c["annotations"][0].update(image_id=99), "annotation 1 of .* is about image 99, which the file"),
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
def test_broken_json(tmp_path: Path, change: Change, message: str) -> None:
    content = write_coco(tmp_path, scenes(4, "train", side=96), images="images", json_name="instances.json")
    change(content)
    (tmp_path / PLAIN).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        read_boxes(tmp_path, "train")


def test_what_is_no_json_is_named_with_its_line(tmp_path: Path) -> None:
    write_coco(tmp_path, scenes(2, "train", side=96), images="images", json_name="instances.json")
    (tmp_path / PLAIN).write_text('{\n"images": [],\n"annotations": [}\n')
    with pytest.raises(ValueError, match=r"instances\.json, line 3: no JSON \(Expecting value\)"):
        read_boxes(tmp_path, "train")
    (tmp_path / PLAIN).write_bytes(b'{"images": "\xff\xfe"}')
    with pytest.raises(ValueError, match=r"instances\.json is no JSON"):
        read_boxes(tmp_path, "train")


def test_an_empty_box_and_one_over_the_border_in_json(tmp_path: Path) -> None:
    content = write_coco(tmp_path, scenes(4, "train", side=96), images="images", json_name="instances.json")
    for changed in content["annotations"][:1]:
        changed["bbox"] = [10, 10, 0, 5]
    content["annotations"][1]["bbox"] = [80, 80, 40, 10]
    (tmp_path / PLAIN).write_text(json.dumps(content))
    found = read_boxes(tmp_path, "train")
    assert found.notes == (
        f"boxes over the border, clipped: 1, first annotation 2 of {PLAIN}",
        f"boxes empty or outside their image, left out: 1, first annotation 1 of {PLAIN}",
    )
    boxes = [one.box for s in ("train", "test") for scene in read_boxes(tmp_path, s).scenes for one in scene.objects]  # type: ignore[arg-type]
    assert (80, 80, 96, 90) in boxes
    assert len(boxes) == len(content["annotations"]) - 1


def test_places_in_no_known_form(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        read_boxes(tmp_path / "nothing", "train")
    with pytest.raises(ValueError, match=r"is in no form that is known: VOCdevkit"):
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


def test_images_that_are_not_what_was_annotated(tmp_path: Path) -> None:
    write_coco(tmp_path, scenes(2, "train", side=96), images="images", json_name="instances.json")
    found = read_boxes(tmp_path, "train")
    path = tmp_path / found.scenes[0].name
    Image.new("RGB", (50, 40)).save(path)
    with pytest.raises(ValueError, match=r"\.png has 50 x 40 pixels, its annotation says 96 x 96: was it resized"):
        found.pixels(0)
    path.write_text("no image")
    with pytest.raises(ValueError, match=r"\.png cannot be read as an image"):
        found.pixels(0)


def test_outlines_of_every_kind() -> None:
    shape = np.zeros((12, 10), np.uint8)
    shape[2:7, 3:9] = 1
    packed = coco.encode(np.asfortranarray(shape))
    flat = shape.flatten(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *edges, flat.size]).tolist()  # run lengths down the columns, background first
    polygon = [3, 2, 9, 2, 9, 7, 3, 7]
    two = [[3, 2, 6, 2, 6, 7, 3, 7], [6, 2, 9, 2, 9, 7, 6, 7]]
    for outline in (
        [polygon],
        two,
        {"size": [12, 10], "counts": counts},
        {"size": [12, 10], "counts": packed["counts"]},
        {"size": [12, 10], "counts": packed["counts"].decode()},
    ):
        np.testing.assert_array_equal(mask(Object(name="a", box=(3, 2, 9, 7), label=1, outline=outline), 12, 10), shape)


@pytest.mark.parametrize(
    "outline", [None, [], [[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]], {"size": [5, 5], "counts": [25]}, {"size": [12, 10]}]
)
def test_broken_outlines(outline: Any) -> None:
    with pytest.raises(ValueError, match=r"annotation 3 has no usable outline, .*"):
        mask(Object(name="annotation 3", box=(0, 0, 1, 1), label=1, outline=outline), 12, 10)
