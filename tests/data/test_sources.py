"""Loading by name or path: folders, tars, arrays, and errors when there is nothing to load."""

import gc
import hashlib
import io
import os
import struct
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from glf.config.inference import ShardConfig
from glf.config.training import Store
from glf.data import sources
from glf.data.arrays import as_png
from glf.data.datasets import DATASETS
from glf.data.decode import decode
from glf.data.source import MissingSplit, Source
from glf.data.sources import READERS, find_source, load_images
from glf.nn.features import Encoder, extract_source
from glf.nn.prior import Pixels
from glf.sharding import shard
from machine import peak

Array = NDArray[np.uint8]
SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def save(pixels: Array, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


# --- folders: splits, classes, files


def test_class_folders_are_labels_in_sorted_order(classes: Path, fashion: Array) -> None:
    images = load_images(str(classes))
    assert images.classes == ("boot", "coat", "dress")
    assert images.targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert images.labelled
    assert images.name == str(classes)
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[:12])


def test_labels_none_drops_labels_and_nothing_else(classes: Path) -> None:
    with_labels, without = load_images(str(classes)), load_images(str(classes), labels="none")
    assert without.targets.tolist() == [-1] * 12
    assert without.classes == ()
    assert not without.labelled
    assert without.key == with_labels.key


@pytest.mark.parametrize("stray", ["loose.png", "loose.JPG"])
def test_one_image_outside_the_class_folders_makes_the_set_unlabelled(
    classes: Path, fashion: Array, stray: str
) -> None:
    save(fashion[50], classes / stray)
    images = load_images(str(classes))
    assert len(images) == 13
    assert images.targets.tolist() == [-1] * 13
    assert images.classes == ()


def test_a_flat_folder_and_a_single_class_folder_are_unlabelled(classes: Path) -> None:
    assert not load_images(str(classes / "boot")).labelled
    for name in ("coat", "dress"):
        for path in (classes / name).iterdir():
            path.unlink()
    images = load_images(str(classes))
    assert len(images) == 4
    assert images.classes == ()


def test_the_class_is_the_first_folder_however_deep_the_image(classes: Path, fashion: Array) -> None:
    save(fashion[50], classes / "coat" / "a" / "b" / "deep.png")
    images = load_images(str(classes))
    assert np.bincount(images.targets).tolist() == [4, 5, 4]


def test_hidden_files_and_other_files_are_ignored(classes: Path, fashion: Array) -> None:
    save(fashion[50], classes / ".thumbnails" / "0.png")
    save(fashion[50], classes / "coat" / "._0.png")
    (classes / "README.txt").write_text("no image")
    (classes / "coat" / "notes.json").write_text("{}")
    images = load_images(str(classes))
    assert len(images) == 12
    assert images.skipped == ()


@pytest.mark.parametrize("name", ["test", "val", "valid", "validation"])
def test_train_and_test_folders(tmp_path: Path, fashion: Array, name: str) -> None:
    for i in range(4):
        save(fashion[i], tmp_path / "set" / "train" / "ab"[i % 2] / f"{i}.png")
        save(fashion[i + 10], tmp_path / "set" / name / "ab"[i % 2] / f"{i}.png")
    train, test = load_images(str(tmp_path / "set")), load_images(str(tmp_path / "set"), "test")
    np.testing.assert_array_equal(train.pixels[..., 0], fashion[[0, 2, 1, 3]])
    np.testing.assert_array_equal(test.pixels[..., 0], fashion[[10, 12, 11, 13]])
    assert train.targets.tolist() == test.targets.tolist() == [0, 0, 1, 1]
    assert train.key != test.key


def test_the_test_folder_is_preferred_to_val(tmp_path: Path, fashion: Array) -> None:
    for i, name in enumerate(("train", "val", "test")):
        save(fashion[i], tmp_path / "set" / name / "0.png")
    np.testing.assert_array_equal(load_images(str(tmp_path / "set"), "test").pixels[0, ..., 0], fashion[2])


def test_an_error_about_a_missing_split_names_the_others(classes: Path, fashion: Array, tmp_path: Path) -> None:
    with pytest.raises(MissingSplit, match=r"no split 'test', it has train$"):
        load_images(str(classes), "test")
    save(fashion[0], tmp_path / "set" / "train" / "0.png")
    with pytest.raises(MissingSplit, match="it has train"):
        load_images(str(tmp_path / "set"), "test")


def test_a_class_has_one_number_in_both_splits(tmp_path: Path, fashion: Array) -> None:
    for i, name in enumerate(("train/a", "train/b", "train/c", "test/b", "test/c")):
        save(fashion[i], tmp_path / "set" / name / "0.png")
    train, test = load_images(str(tmp_path / "set")), load_images(str(tmp_path / "set"), "test")
    assert train.classes == test.classes == ("a", "b", "c")
    assert test.targets.tolist() == [1, 2]
    for path in ("test/b/0.png", "test/b"):
        target = tmp_path / "set" / path
        target.rmdir() if target.is_dir() else target.unlink()
    test = load_images(str(tmp_path / "set"), "test")  # a single class folder, but a class of train
    assert test.targets.tolist() == [2]


def test_a_folder_around_the_test_images_is_no_class(tmp_path: Path, fashion: Array) -> None:
    for i, name in enumerate(("train/a", "train/b", "test/images")):
        save(fashion[i], tmp_path / "set" / name / "0.png")
    train, test = load_images(str(tmp_path / "set")), load_images(str(tmp_path / "set"), "test")
    assert train.classes == ("a", "b")
    assert test.classes == ()
    assert test.targets.tolist() == [-1]


def test_loops_of_symbolic_links_end_and_links_are_followed_once(classes: Path, tmp_path: Path, fashion: Array) -> None:
    os.symlink(classes, classes / "boot" / "up")
    os.symlink(classes / "dress", classes / "boot" / "aside")  # its images stay in the class dress
    os.symlink(classes / "boot", classes / "dress" / "aside")
    os.symlink(classes / "nowhere", classes / "coat" / "broken.png")
    save(fashion[60], tmp_path / "elsewhere" / "0.png")
    os.symlink(tmp_path / "elsewhere", classes / "shoe")
    os.symlink(tmp_path / "elsewhere" / "0.png", classes / "coat" / "linked.png")
    images = load_images(str(classes))
    assert images.classes == ("boot", "coat", "dress", "shoe")
    assert np.bincount(images.targets).tolist() == [4, 5, 4, 1]


def test_an_error_about_an_empty_folder_names_the_suffixes(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "a.txt").write_text("a")
    with pytest.raises(ValueError, match=r"no images in .*nothing.*\.jpg .*\.png"):
        load_images(str(tmp_path / "nothing"))


# --- tars


def tar_of(folder: Path, tar: Path, *, top: str = "") -> Path:
    with tarfile.open(tar, "w") as out:
        out.add(folder, arcname=top or ".")
    return tar


def test_a_tar_reads_like_its_folder(classes: Path, tmp_path: Path) -> None:
    expected = load_images(str(classes))
    for top in ("", "photos"):
        images = load_images(str(tar_of(classes, tmp_path / f"a{top}.tar", top=top)))
        np.testing.assert_array_equal(images.pixels, expected.pixels)
        np.testing.assert_array_equal(images.targets, expected.targets)
        assert images.classes == expected.classes


def test_a_tar_with_splits(tmp_path: Path, fashion: Array) -> None:
    for i, name in enumerate(("train/b/1.webp", "train/a/2.webp", "train/a/1.webp", "test/b/1.webp")):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(fashion[i]).save(path, lossless=True)
    tar = tmp_path / "set.tar"
    with tarfile.open(tar, "w") as out:  # members not sorted
        for name in ("train/b/1.webp", "test/b/1.webp", "train/a/2.webp", "train/a/1.webp"):
            out.add(tmp_path / "set" / name, arcname=name)
    train, test = load_images(str(tar)), load_images(str(tar), "test")
    np.testing.assert_array_equal(train.pixels[..., 0], fashion[[2, 1, 0]])
    assert train.targets.tolist() == [0, 0, 1]
    assert test.targets.tolist() == [1]
    assert test.classes == ("a", "b")


def test_members_that_are_links_or_lead_outside_are_listed(tmp_path: Path, fashion: Array) -> None:
    def add(out: tarfile.TarFile, name: str, pixels: Array) -> None:
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "PNG")
        member = tarfile.TarInfo(name)
        member.size = data.tell()
        out.addfile(member, io.BytesIO(data.getvalue()))

    tar = tmp_path / "odd.tar"
    with tarfile.open(tar, "w") as out:
        add(out, "a/1.png", fashion[9])
        for name in ("../up.png", "/etc/absolute.png", "a/../../up.png", "b/.hidden.png"):
            add(out, name, fashion[3])
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("b/link.png")
            member.type, member.linkname = kind, "a/1.png"
            out.addfile(member)
        add(out, "./b/2.png", fashion[1])
        add(out, "a/1.png", fashion[0])  # again, as `tar -r` does: the later one counts
    images = load_images(str(tar))
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[:2])
    assert images.targets.tolist() == [0, 1]
    outside = "its name leads out of the tar"
    assert dict(images.skipped) == {
        "../up.png": outside,
        "/etc/absolute.png": outside,
        "a/../../up.png": outside,
        "b/link.png": "no regular file",  # the last of three with that name
    }


def test_compressed_and_damaged_tars_are_refused(classes: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as out:
        out.add(classes, arcname=".")
    with pytest.raises(ValueError, match="decompress it first"):
        load_images(str(tmp_path / "a.tar.gz"))
    (tmp_path / "a.tar.gz").rename(tmp_path / "gzipped.tar")
    with pytest.raises(ValueError, match=r"gzipped\.tar cannot be read as an uncompressed tar"):
        load_images(str(tmp_path / "gzipped.tar"))
    tar = tar_of(classes, tmp_path / "cut.tar")
    tar.write_bytes(tar.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"cut\.tar cannot be read"):
        load_images(str(tar))


def test_real_photos_in_a_tar(tmp_path: Path) -> None:
    tar = SHARED / "imagenette96.tar"
    if not tar.is_file():
        pytest.skip("the shared folder of real images, next to this repository, is not there")
    start = time.perf_counter()
    images = load_images(str(tar), "test", progress=False)
    first, start = time.perf_counter() - start, time.perf_counter()
    again = load_images(str(tar), "test", progress=False)
    second = time.perf_counter() - start
    assert images.pixels.shape == (1500, 96, 96, 3)
    assert len(images.classes) == 10
    assert images.labelled
    assert images.skipped == ()
    assert 60 < images.pixels[::50].mean() < 180  # photographs, not noise and not black
    assert again.key == images.key
    assert second < first / 2


# --- arrays


@pytest.mark.parametrize(
    "names",
    [
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("images", "labels", "test_images", "test_labels"),
    ],
)
def test_npz_conventions(tmp_path: Path, fashion: Array, names: tuple[str, ...]) -> None:
    labels = np.arange(20, dtype=np.uint8)[:, None] % 4  # (n, 1), as in MedMNIST
    arrays: tuple[NDArray[Any], ...] = (fashion[:20], labels, fashion[20:30], np.zeros(10, np.int32))
    np.savez(tmp_path / "a.npz", **dict(zip(names, arrays, strict=True)))  # type: ignore[arg-type]
    train, test = load_images(str(tmp_path / "a.npz")), load_images(str(tmp_path / "a.npz"), "test")
    np.testing.assert_array_equal(train.pixels[..., 0], fashion[:20])
    np.testing.assert_array_equal(test.pixels[..., 0], fashion[20:30])
    assert train.targets.tolist() == [0, 1, 2, 3] * 5
    assert train.classes == test.classes == ("0", "1", "2", "3")
    assert load_images(str(tmp_path / "a.npz"), labels="none").classes == ()


def test_npz_without_labels_or_test(tmp_path: Path, fashion: Array) -> None:
    np.savez(tmp_path / "a.npz", images=fashion)
    images = load_images(str(tmp_path / "a.npz"))
    assert images.classes == ()
    assert (images.targets == -1).all()
    with pytest.raises(MissingSplit, match="it has train"):
        load_images(str(tmp_path / "a.npz"), "test")


def test_array_layouts_and_types_give_the_same_images(tmp_path: Path, colour: Array) -> None:
    path = tmp_path / "a.npy"
    np.save(path, colour)
    expected = load_images(str(path))
    assert expected.size == (28, 28)
    for other in (
        colour.transpose(0, 3, 1, 2),
        np.asfortranarray(colour),
        colour / 255,
        (colour / 255).astype(np.float32).transpose(0, 3, 1, 2),
    ):
        np.save(path, other)
        images = load_images(str(path))
        np.testing.assert_array_equal(images.pixels, colour)
        assert images.key == expected.key
    np.save(path, colour[::-1])
    assert load_images(str(path)).key != expected.key


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 28), np.uint8), r"shape \(5, 28\)"),
        (np.zeros((5, 8, 8, 4), np.uint8), r"shape \(5, 8, 8, 4\)"),
        (np.zeros((0, 8, 8), np.uint8), "no pixels"),
        (np.zeros((5, 8, 8), np.int64), "type int64"),
        (np.full((5, 8, 8), 255.0), r"from 255\.0 to 255\.0"),
        (np.full((5, 8, 8), np.nan), "from nan to nan"),
        (np.full((5, 8, 8), None), "(allow_pickle=False|Python objects)"),
    ],
)
def test_arrays_that_are_not_images(tmp_path: Path, array: NDArray[np.generic], message: str) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=r"a\.npy is not .*" + message):
        load_images(str(tmp_path / "a.npy"))
    np.savez(tmp_path / "a.npz", images=array)
    with pytest.raises(ValueError, match=r"a\.npz is not .*" + message):
        load_images(str(tmp_path / "a.npz"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.zeros(3, np.int64)}, r"shape \(3,\); expected 4 integers"),
        ({"labels": np.zeros(4)}, "type float64"),
        ({"labels": np.array([0, 1, -2, 0])}, "label -2"),
        ({"labels": np.array([0, 1, 2, 0]), "classes": np.array(["a", "b"])}, "label 2, but only 2 classes"),
        ({"labels": np.array([0, 1, 2**40, 0])}, "label 1099511627776, but at most 1,000,000 classes"),
        ({"labels": np.array([0, 1, 2**63, 0], np.uint64)}, "label 9223372036854775808, but at most"),
        ({"labels": np.array([0, 1, 60_000, 0])}, r"label 60000, but only \d images: number the classes from 0"),
        ({"labels": np.arange(4), "test_labels": np.array(["cat", "dog"])}, "labels of type <U3"),
        ({"labels": np.arange(4), "test_labels": np.array([0, 2**40])}, "label 1099511627776, but at most"),
        ({"labels": np.arange(4), "test_labels": np.array(7)}, "a.npz is not an .npz file of images: "),
        ({"labels": np.arange(4), "classes": np.array("cat")}, "a.npz is not an .npz file of images: "),
    ],
)
def test_labels_that_do_not_fit(tmp_path: Path, arrays: dict[str, NDArray[np.generic]], message: str) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 8, 8), np.uint8), **arrays)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        load_images(str(tmp_path / "a.npz"))


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # numpy leaves a damaged archive open
def test_npz_with_other_names_and_broken_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pictures=np.zeros((4, 8, 8), np.uint8))
    with pytest.raises(ValueError, match=r"\['pictures'\], but none of 'train_images', 'x_train', 'images'"):
        load_images(str(tmp_path / "a.npz"))
    for name in ("b.npz", "b.npy"):
        for content in (b"", b"not an array", b"PK\x03\x04 cut"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ValueError, match=rf"{name} is not an"):
                load_images(str(tmp_path / name))
    (tmp_path / "a.npz").rename(tmp_path / "renamed.npy")
    with pytest.raises(ValueError, match="its content is that of another kind of file, NpzFile"):
        load_images(str(tmp_path / "renamed.npy"))
    np.save(tmp_path / "array.npy", np.zeros((4, 8, 8), np.uint8))
    (tmp_path / "array.npy").rename(tmp_path / "renamed.npz")
    with pytest.raises(ValueError, match="its content is that of another kind of file, memmap"):
        load_images(str(tmp_path / "renamed.npz"))
    gc.collect()  # while the warning about it is ignored


def with_header(path: Path, header: str, data: bytes = b"") -> None:
    """An array of this header, as a file or as the only member of an archive."""
    text = header.encode().ljust(118) + b"\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data
    if path.suffix == ".npy":
        path.write_bytes(content)
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", content)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # numpy leaves a damaged archive open
@pytest.mark.filterwarnings("error::RuntimeWarning")  # which would be printed before the one line
@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (4611686018427387904, 28, 28)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (8000000, 32, 32)}",  # 8 GB
        "{'descr': '|u1', 'fortran_order': False, 'shape': (9000000000000000000, 9, 9)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 32, 32)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 32, 32",
        "{'descr': '|u1', 'fortran_order': False, 'shape': '4'}",
        "{'descr': 'cats', 'fortran_order': False, 'shape': (4, 32, 32)}",
        "(" * 110,
    ],
)
def test_damaged_headers_are_refused_in_one_line_without_memory(tmp_path: Path, name: str, header: str) -> None:
    with_header(tmp_path / name, header, bytes(4096))
    with peak() as memory, pytest.raises(ValueError, match=rf"{name} is not an") as error:
        load_images(str(tmp_path / name))
    assert "\n" not in str(error.value)
    assert memory.bytes < 2**26
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # numpy leaves a damaged archive open
def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 8, 8), np.uint8))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + flags] |= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.npz is not an .npz file of images: .*encrypted"):
        load_images(str(tmp_path / "a.npz"))
    gc.collect()


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.tar"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match="not a regular file"):
        load_images(str(tmp_path / name))


# --- mistakes


@pytest.mark.parametrize(
    ("wrong", "right"), [("cifar-10", "cifar10"), ("CIFAR100", "cifar100"), ("fashionmini", "fashion-mini")]
)
def test_an_unknown_name_gives_the_nearest_and_all(wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"{wrong!r}.*did you mean {right!r}") as error:
        load_images(wrong)
    assert all(name in str(error.value) for name in DATASETS)


def test_an_almost_right_path_gives_its_neighbour(classes: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file or folder.*did you mean '.*photos'"):
        load_images(str(classes.parent / "photo"))
    with pytest.raises(ValueError, match="no such file or folder") as error:
        load_images(str(classes.parent / "zzzzzz" / "qqq"))
    assert "did you mean" not in str(error.value)
    with pytest.raises(ValueError, match="no such file or folder"):
        load_images("")


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "a.doc").write_text("1,2")
    with pytest.raises(ValueError, match=r"a\.doc' is a file of another kind; expected a folder"):
        load_images(str(tmp_path / "a.doc"))


def test_wrong_arguments(classes: Path) -> None:
    # Under pytest the type checker may come before the function's own check; both name the value.
    with pytest.raises((ValueError, TypeError), match="validation"):
        load_images(str(classes), "validation")  # type: ignore[arg-type]
    with pytest.raises((ValueError, TypeError), match="yes"):
        load_images(str(classes), labels="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        load_images(str(classes), size=0)


# --- sources


def test_a_source_that_was_found_before_is_not_listed_again(
    classes: Path, monkeypatch: pytest.MonkeyPatch, fashion: Array
) -> None:
    source = find_source(str(classes), "train")
    monkeypatch.setattr(sources, "find_source", None)  # any listing would now fail
    images = load_images(str(classes), source=source)
    assert images.classes == ("boot", "coat", "dress")
    np.testing.assert_array_equal(images.pixels[..., 0], fashion[:12])


class Concatenated(Source):
    """A new kind of source: image files in a .cat file, each after its length in four bytes."""

    def __init__(self, path: Path, split: str) -> None:
        data, self.files = path.read_bytes(), list[bytes]()
        while data:
            length = int.from_bytes(data[:4], "big")
            self.files.append(data[4 : 4 + length])
            data = data[4 + length :]
        self.targets, self.classes = np.arange(len(self.files)) % 2, ("even", "odd")

    @property
    def key(self) -> str:
        return hashlib.blake2b(b"".join(self.files), digest_size=8).hexdigest()

    def __len__(self) -> int:
        return len(self.files)

    def name(self, i: int) -> str:
        return f"{i}.png"

    def read(self, i: int) -> bytes:
        return self.files[i]


@pytest.mark.parametrize("store", ["pack", "decode"])
def test_a_new_kind_of_source_is_a_class_and_a_line_in_the_table(
    store: Store, tmp_path: Path, fashion: Array, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    files = [b"no image", *(as_png(pixels[..., None]) for pixels in fashion[:6])]
    path = tmp_path / "images.cat"
    path.write_bytes(b"".join(len(file).to_bytes(4, "big") + file for file in files))
    monkeypatch.setitem(READERS, ".cat", ("a .cat file", Concatenated))
    images = load_images(str(path), store=store)
    assert images.targets.tolist() == [1, 0, 1, 0, 1, 0]
    assert [one.name for one in images.skipped] == ["0.png"]
    np.testing.assert_array_equal(images.pixels[:][..., 0], fashion[:6])

    encoder = Encoder("pixels", Pixels(), None, 3)
    found = extract_source(encoder, find_source(str(path), "all"), cache=tmp_path / "embeddings")
    assert found.paths == [f"{i}.png" for i in range(1, 7)]
    assert found.features.shape == (6, 3 * 28 * 28)

    assert shard(ShardConfig(data=str(path), out=tmp_path / "shards"), console).images == 6
    with tarfile.open(tmp_path / "shards" / "shard-000000.tar") as tar:
        stored = {tar.extractfile(m).read() for m in tar if m.name.endswith(".png")}  # type: ignore[union-attr]
    assert stored == set(files[1:])
    with pytest.raises(ValueError, match=r"expected a folder of images, .*, an \.arrow file or a \.cat file"):
        load_images(str(tmp_path / "none"))


@pytest.mark.parametrize("i", [0, 5])
def test_an_image_of_an_array_can_be_read_as_a_file(tmp_path: Path, colour: Array, i: int) -> None:
    np.save(tmp_path / "a.npy", colour)
    source = find_source(str(tmp_path / "a.npy"), "all")
    np.testing.assert_array_equal(decode(source.read(i)), colour[i])
    assert (len(source), source.name(i), source.path(i)) == (66, f"{i}.png", str(i))
