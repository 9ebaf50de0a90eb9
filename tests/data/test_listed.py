"""A .csv of paths as data: the same images as a folder of these files, in the order of the list."""

from pathlib import Path

import numpy as np
import pytest

from glf.data.listed import write_list
from glf.data.source import MissingSplit
from glf.data.sources import find_source, load_images
from photos import BROKEN, write_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), 8)


def test_a_list_has_the_images_of_its_files_in_its_order(photos, tmp_path):
    folder = load_images(str(photos), size=32)
    names = [
        str(path) for path in sorted(photos.rglob("*.jpg"), reverse=True) if "/".join(path.parts[-2:]) not in BROKEN
    ]
    write_list(tmp_path / "list.csv", [*names, names[0]])
    listed = load_images(str(tmp_path / "list.csv"), size=32)
    assert len(listed) == len(names) + 1 == len(folder) + 1
    assert np.array_equal(listed.pixels[:-1], folder.pixels[:][::-1])
    assert np.array_equal(listed.pixels[-1], listed.pixels[0]), "a file may be named twice"
    assert not listed.labelled
    assert find_source(str(tmp_path / "list.csv"), "all").path(0) == names[0]


def test_labels_and_paths_relative_to_the_list(photos):
    rows = [("boot/000.jpg", "boot"), ("coat/001.jpg", "a coat"), ("gone.jpg", "boot"), ("coat", "boot"), ("", "")]
    path = photos / "list.csv"
    path.write_text(
        "label,path,note\n" + "".join(f'"{label}",{name},x\n' for name, label in rows), encoding="utf-8-sig"
    )
    images = load_images(str(path))
    assert (len(images), images.classes, images.targets.tolist()) == (2, ("a coat", "boot"), [1, 0])
    assert [(one.name, one.why) for one in images.skipped] == [
        ("gone.jpg", "cannot be read: No such file or directory"),
        ("coat", "not a file"),
    ]
    assert not load_images(str(path), labels="none").labelled
    with pytest.raises(MissingSplit, match=r"list\.csv has no split 'test', it has train"):
        load_images(str(path), "test")


@pytest.mark.parametrize("name", ["a,b.jpg", 'quote".jpg', "line\nbreak.jpg", "byte\udcff.jpg", " space.jpg"])
def test_any_name_survives_the_list(photos, tmp_path, name):
    (tmp_path / name).write_bytes((photos / "boot" / "000.jpg").read_bytes())
    write_list(tmp_path / "list.csv", [tmp_path / name])
    source = find_source(str(tmp_path / "list.csv"), "train")
    assert source.path(0) == str(tmp_path / name)
    assert source.read(0) == (photos / "boot" / "000.jpg").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "file,label\na.jpg,b\n",
            r"list\.csv is not a \.csv of paths: its first line has no column 'path', but file, label",
        ),
        ("", "no column 'path', but nothing"),
        ("path\n", r"list\.csv lists 0 files"),
        ("path\ngone.jpg\n", r"lists 1 files, and none of them is there, first gone\.jpg: cannot be read"),
        ("path\n" + 200_000 * "x", r"list\.csv is not a \.csv of paths: field larger than field limit"),
    ],
)
def test_what_is_no_list_of_images(tmp_path, text, message):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        find_source(str(tmp_path / "list.csv"), "train")
