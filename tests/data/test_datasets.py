"""Named data sets, from small files in their real formats, which torchvision's own code reads."""

import gzip
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from glf.data import datasets
from glf.data.datasets import DATASETS
from glf.data.sources import load_images

Array = NDArray[np.uint8]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"  # where GLF_DATA points


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def pickled(path: Path, content: dict[str, object]) -> list[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return [path.name, md5(path)]


def rows(images: Array) -> Array:
    """Colour images as CIFAR stores them: one row per image, channel by channel."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), 3 * 32 * 32)


@pytest.fixture
def colour32(colour: Array) -> Array:
    return np.pad(colour, ((0, 0), (2, 2), (2, 2), (0, 0)))


def test_cifar10(root: Path, colour32: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    folder = root / "cifar-10-batches-py"
    names = ["airplane", "automobile", "bird"]
    train = [
        pickled(
            folder / f"data_batch_{i + 1}",
            {"data": rows(colour32[4 * i : 4 * i + 4]), "labels": [i % 3, 1, 2, 0]},
        )
        for i in range(5)
    ]
    test = [pickled(folder / "test_batch", {"data": rows(colour32[20:23]), "labels": [2, 0, 1]})]
    meta = pickled(folder / "batches.meta", {"label_names": names})
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", test)
    monkeypatch.setattr(CIFAR10, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})

    images = load_images("cifar10")
    np.testing.assert_array_equal(images.pixels, colour32[:20])
    assert images.pixels.flags.c_contiguous
    assert images.targets[[0, 4, 8, 12]].tolist() == [0, 1, 2, 0]
    assert images.classes == tuple(names)
    np.testing.assert_array_equal(load_images("cifar10", "test").pixels, colour32[20:23])
    again = load_images("cifar10", download=True)  # already there: no network
    np.testing.assert_array_equal(again.pixels, images.pixels)

    (folder / "data_batch_3").write_bytes(b"damaged")
    with pytest.raises(FileNotFoundError, match=r"no intact .*cifar-10-batches-py.*--download"):
        load_images("cifar10")


def test_cifar100(root: Path, colour32: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR100

    folder = root / "cifar-100-python"
    for split, part in (("train", colour32[:6]), ("test", colour32[6:8])):
        labels = {"fine_labels": list(range(len(part))), "coarse_labels": [0] * len(part)}
        entry = pickled(folder / split, {"data": rows(part), **labels})
        monkeypatch.setattr(CIFAR100, f"{split}_list", [entry])
    meta = pickled(folder / "meta", {"fine_label_names": list("abcdef"), "coarse_label_names": ["z"]})
    monkeypatch.setattr(CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": meta[1]})
    train, test = load_images("cifar100"), load_images("cifar100", "test")
    np.testing.assert_array_equal(train.pixels, colour32[:6])
    np.testing.assert_array_equal(test.pixels, colour32[6:8])
    assert train.targets.tolist() == [0, 1, 2, 3, 4, 5]
    assert train.classes == test.classes == tuple("abcdef")


def test_stl10(root: Path, colour: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import STL10

    big = np.stack([np.asarray(Image.fromarray(image).resize((96, 96))) for image in colour[:9]])
    folder = root / "stl10_binary"
    folder.mkdir()

    def written(name: str, array: Array) -> list[str]:
        array.tofile(folder / name)
        return [name, md5(folder / name)]

    def stored(images: Array) -> Array:  # channel, column, row
        return np.ascontiguousarray(images.transpose(0, 3, 2, 1))

    train = [
        written("train_X.bin", stored(big[:3])),
        written("train_y.bin", np.array([1, 3, 2], np.uint8)),  # counted from one
        written("unlabeled_X.bin", stored(big[3:7])),
    ]
    test = [written("test_X.bin", stored(big[7:])), written("test_y.bin", np.array([2, 1], np.uint8))]
    (folder / "class_names.txt").write_text("airplane\nbird\ncar\n")
    monkeypatch.setattr(STL10, "train_list", train)
    monkeypatch.setattr(STL10, "test_list", test)

    images = load_images("stl10")
    np.testing.assert_array_equal(images.pixels, big[:7])
    assert images.targets.tolist() == [0, 2, 1, -1, -1, -1, -1]
    assert not images.labelled
    held_out = load_images("stl10", "test")
    np.testing.assert_array_equal(held_out.pixels, big[7:])
    assert held_out.targets.tolist() == [1, 0]
    assert held_out.classes == ("airplane", "bird", "car")
    assert held_out.labelled


def idx(array: Array) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", ["FashionMNIST/raw", "fashion-mnist"])
def test_fashion_mnist(root: Path, fashion: Array, monkeypatch: pytest.MonkeyPatch, folder: str, packed: bool) -> None:
    monkeypatch.setattr(datasets, "DEBIAN", root / "no-debian-package")
    parts = {
        "train-images-idx3-ubyte": fashion[:20],
        "train-labels-idx1-ubyte": np.arange(20, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": fashion[20:25],
        "t10k-labels-idx1-ubyte": np.arange(5, dtype=np.uint8),
    }
    (root / folder).mkdir(parents=True)
    for name, array in parts.items():
        data = idx(array)
        (root / folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    train, test = load_images("fashion-mnist"), load_images("fashion-mnist", "test")
    np.testing.assert_array_equal(train.pixels[..., 0], fashion[:20])
    np.testing.assert_array_equal(test.pixels[..., 0], fashion[20:25])
    assert train.targets.tolist() == list(range(10)) * 2
    if folder == "FashionMNIST/raw" and not packed:
        from torchvision.datasets import FashionMNIST

        theirs = FashionMNIST(str(root))
        np.testing.assert_array_equal(theirs.data.numpy(), train.pixels[..., 0])
        np.testing.assert_array_equal(theirs.targets.numpy(), train.targets)
        assert tuple(theirs.classes) == train.classes
    path = root / folder / ("train-images-idx3-ubyte" + ".gz" * packed)
    path.write_bytes(gzip.compress(idx(fashion[:20])[:-1]) if packed else idx(fashion[:20])[:-1])
    with pytest.raises(ValueError, match=r"should hold \[20, 28, 28\] values, but holds 15679"):
        load_images("fashion-mnist")


def photo(pixels: Array, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "JPEG")


def test_tiny_imagenet(root: Path, colour: Array) -> None:
    folder = root / "tiny-imagenet-200"
    wnids = ("n02124075", "n01443537", "n04067472")
    for i, wnid in enumerate(wnids):
        for j in range(2):
            photo(colour[2 * i + j], folder / "train" / wnid / "images" / f"{wnid}_{j}.JPEG")
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t9\t9\n")
    photo(colour[30], folder / "test" / "images" / "test_0.JPEG")  # without a label: never loaded
    lines = []
    for i, wnid in enumerate((wnids[2], wnids[0], wnids[2], wnids[0])):
        photo(colour[10 + i], folder / "val" / "images" / f"val_{i}.JPEG")
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t9\t9\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))

    for data in ("tiny-imagenet", str(folder)):  # by name, or as a folder of that layout
        train, test = load_images(data), load_images(data, "test")
        assert train.classes == test.classes == tuple(sorted(wnids))
        assert train.targets.tolist() == [0, 0, 1, 1, 2, 2]
        assert test.targets.tolist() == [2, 1, 2, 1]
        assert train.labelled
        assert test.labelled
        assert len(test) == 4

    (folder / "val" / "val_annotations.txt").write_text("".join(lines[1:]))
    with pytest.raises(ValueError, match=r"gives val/images/val_0\.JPEG the class ''"):
        load_images("tiny-imagenet", "test")


@pytest.mark.parametrize("name", ["imagenet100", "imagenet"])
def test_imagenet(root: Path, colour: Array, name: str) -> None:
    for i, wnid in enumerate(("n01", "n02", "n03")):
        photo(np.tile(colour[i], (3, 2, 1)), root / name / "train" / wnid / f"{wnid}_1.JPEG")
        photo(np.tile(colour[i], (2, 3, 1)), root / name / "val" / wnid / f"val_{i}.JPEG")
    photo(colour[9], root / name / "test" / "test_0.JPEG")  # ImageNet's test images have no labels
    train, test = load_images(name, size=28), load_images(name, "test", size=28)
    assert train.pixels.shape == test.pixels.shape == (3, 32, 32, 3)
    assert test.targets.tolist() == train.targets.tolist() == [0, 1, 2]
    assert test.classes == ("n01", "n02", "n03")


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("fashion-mini", "fashion-scenes")])
def test_a_missing_data_set_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "no-debian-package")
    where = tmp_path / "mine"
    with pytest.raises(FileNotFoundError) as error:
        load_images(name, root=where)
    message = str(error.value)
    assert str(where) in message
    if name in ("tiny-imagenet", "imagenet100", "imagenet"):
        assert "cannot be downloaded" in message
        assert "train/<wnid>/" in message
    else:
        assert "--download" in message
    assert not where.exists()


def test_download_is_passed_on_only_if_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour32: Array) -> None:
    from torchvision import datasets

    asked: list[bool] = []

    class Fake:
        base_folder = "fake"
        data, targets, classes = colour32[:2], [0, 1], ["a", "b"]

        def __init__(self, root: str, train: bool, download: bool) -> None:
            asked.append(download)

    monkeypatch.setattr(datasets, "CIFAR10", Fake)
    load_images("cifar10")
    load_images("cifar10", download=True)
    assert asked == [False, True]
