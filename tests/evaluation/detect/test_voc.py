"""Pascal VOC: published and own layouts, split lists, and errors in XML files and lists."""

from pathlib import Path

import pytest
from PIL import Image

from glf.evaluation.detect.run import read_boxes


def xml(objects: str = "", width: int = 60, height: int = 50) -> str:
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation>\n{size}\n{objects}\n</annotation>"


def item(name: str, box: tuple[float, ...], difficult: int = 0) -> str:
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


DOG, CAT = item("dog", (11, 6, 40, 30)), item("cat", (1, 1, 60, 50), difficult=1)


def test_voc_as_published(tmp_path: Path) -> None:
    files = {"000001": xml(DOG + CAT), "000002": xml(), "000003": xml(item("dog", (2, 2, 9, 9)))}
    voc(tmp_path / "VOCdevkit" / "VOC2007", files, {"trainval": ["000001", "000002"], "test": ["000003"]})
    for path in (tmp_path, tmp_path / "VOCdevkit", tmp_path / "VOCdevkit" / "VOC2007"):
        train, test = read_boxes(path, "train"), read_boxes(path, "test")
        assert train.classes == test.classes == ("cat", "dog")
        assert [Path(scene.name).name for scene in train.scenes] == ["000001.jpg", "000002.jpg"]
        dog, cat = train.scenes[0].objects
        assert (dog.box, dog.label, dog.ignored) == ((10, 5, 40, 30), 2, False)  # the first pixel is 1, the last inside
        assert (cat.box, cat.label, cat.ignored) == ((0, 0, 60, 50), 1, True)
        assert (train.object_count, test.object_count, train.notes) == (1, 1, ())
        assert train.scenes[1].boxes.shape == (0, 4)
        assert train.pixels(0).shape == (50, 60, 3)


def test_several_years_are_combined_and_only_years_with_a_test_list_are_tested(tmp_path: Path) -> None:
    voc(tmp_path / "VOC2007", {"1": xml(DOG), "2": xml(DOG)}, {"trainval": ["1"], "test": ["2"]})
    voc(tmp_path / "VOC2012", {"3": xml(DOG)}, {"trainval": ["3"], "train": ["3"], "val": []})
    assert [s.name for s in read_boxes(tmp_path, "train").scenes] == [
        "VOC2007/JPEGImages/1.jpg",
        "VOC2012/JPEGImages/3.jpg",
    ]
    assert [s.name for s in read_boxes(tmp_path, "test").scenes] == ["VOC2007/JPEGImages/2.jpg"]


def test_without_a_test_list_val_is_the_test_split(tmp_path: Path) -> None:
    voc(tmp_path, {"1": xml(DOG), "2": xml(DOG)}, {"train": ["1"], "val": ["2"], "trainval": ["1", "2"]})
    assert [s.name for s in read_boxes(tmp_path, "train").scenes] == ["JPEGImages/1.jpg"]
    assert [s.name for s in read_boxes(tmp_path, "test").scenes] == ["JPEGImages/2.jpg"]


def test_without_lists_the_seed_splits(tmp_path: Path) -> None:
    voc(tmp_path, {f"ship{i}": xml(DOG) for i in range(10)}, {}, images="images")
    splits = {seed: [read_boxes(tmp_path, split, seed=seed) for split in ("train", "test")] for seed in (0, 1)}
    for train, test in splits.values():
        names = [scene.name for scene in (*train.scenes, *test.scenes)]
        assert (len(train), len(test), len(set(names))) == (8, 2, 10)
    assert splits[0][0].key == read_boxes(tmp_path, "train", seed=0).key != splits[1][0].key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation>\n<object>\n</annotation>", r"1\.xml, line 3: not valid XML \(mismatched tag"),
        ("", r"1\.xml, line 1: not valid XML"),
        ("<annotation></annotation>", r"1\.xml lacks the size of the image"),
        (xml(DOG, width=0), r"1\.xml lacks the size of the image"),
        (xml(item("", (1, 1, 5, 5))), r"object 1 of Annotations/1\.xml in .* has no <name>"),
        (
            xml(DOG + item("cat", (1, 1, 5, 5)).replace("<ymax>5</ymax>", "<ymax>five</ymax>")),
            r"object 2 of .*1\.xml in .* has the box \['1', '1', '5', 'five'\]",
        ),
        (xml(item("dog", (1, 1, 5, float("nan")))), "expected 4 numbers"),
        (xml(item("dog", (1, 1, 5, 5)).replace("bndbox", "box")), r"\[None, None, None, None\], expected 4 numbers"),
        (xml(item("dog", (1, 1, 9, 9), difficult=1)), "no image of the train split of .* has an object"),
        (xml(), "no image of the train split of .* has an object"),
    ],
)
def test_errors_in_xml_name_the_file_and_the_object(tmp_path: Path, text: str, message: str) -> None:
    voc(tmp_path, {"1": text, "2": xml(DOG)}, {"trainval": ["1"], "test": ["2"]})
    with pytest.raises(ValueError, match=message):
        read_boxes(tmp_path, "train")


def test_errors_in_lists_name_the_list(tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match=r"1 of the 1 images named in Annotations are missing .*JPEGImages/1\.jpg"):
        read_boxes(root, "train")


def test_boxes_over_the_border_are_clipped_empty_boxes_left_out_and_both_counted(tmp_path: Path) -> None:
    over, rounded = item("dog", (-4, 5, 20, 70)), item("dog", (1, 1, 61, 50))
    outside, empty = item("dog", (70, 5, 90, 20)), item("dog", (30, 20, 20, 40))
    voc(tmp_path, {"1": xml(over + rounded + outside + empty), "2": xml(DOG)}, {"trainval": ["1"], "test": ["2"]})
    train = read_boxes(tmp_path, "train")
    assert [one.box for one in train.scenes[0].objects] == [(0, 4, 20, 50), (0, 0, 60, 50)]
    assert train.notes == (
        "boxes over the border, clipped: 1, first object 1 of Annotations/1.xml",
        "boxes empty or outside their image, left out: 2, first object 3 of Annotations/1.xml",
    )
    assert read_boxes(tmp_path, "test").notes == ()
