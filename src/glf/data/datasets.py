"""Data sets known by name, read in the layout in which they are published."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.resources import as_file
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glf.data.arrays import Arrays, as_pixels, as_targets, read_idx, read_npz
from glf.data.files import Files, list_files
from glf.data.scenes import scenes
from glf.data.source import Source

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts it
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


class Dataset(NamedTuple):
    """A named data set. ``read(split, root, download)`` uses the network only if ``download`` is true."""

    about: str
    read: Callable[[str, Path, bool], Source]


def is_tiny_imagenet(folder: Path) -> bool:
    """Whether the validation labels are where only Tiny ImageNet has them."""
    return (folder / "val" / "val_annotations.txt").is_file()


def read_tiny_imagenet(folder: Path, split: str) -> Files:
    """Read Tiny ImageNet. Its test split here is its ``val``, labelled by a text file: its own test has no labels."""
    train = list_files(folder, "train", test_folders=())
    if split == "train":
        return train
    files = list_files(folder, "test", test_folders=("val",))
    annotations = folder / "val" / "val_annotations.txt"
    wnids = dict(line.split("\t")[:2] for line in annotations.read_text().splitlines())
    names = [wnids.get(Path(entry.name).name, "") for entry in files.entries]
    for entry, name in zip(files.entries, names, strict=True):
        if name not in train.classes:
            raise ValueError(f"{annotations} gives {entry.name} the class {name!r}, which train does not have")
    return files.with_labels(names, list(train.classes))


def _fashion_mini(split: str, root: Path, download: bool) -> Arrays:
    with as_file(resources("glf.data") / "embedded" / "fashion_mini.npz") as path:
        return read_npz(path, split)


def _fashion_scenes(split: str, root: Path, download: bool) -> Arrays:
    garments = _fashion_mini(split, root, download)
    assert garments.pixels is not None
    pixels = scenes(garments.pixels[..., 0], seed=SCENE_SEEDS[split])
    return Arrays(pixels=pixels, targets=garments.targets, classes=garments.classes)


def _fashion_mnist(split: str, root: Path, download: bool) -> Arrays:
    stem = "train" if split == "train" else "t10k"
    names = (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte")
    folders = (root / "FashionMNIST" / "raw", root / "fashion-mnist", DEBIAN)
    found = _idx_pair(folders, names)
    if found is None and download:
        import_module("torchvision.datasets").FashionMNIST(str(root), download=True)
        found = _idx_pair(folders, names)
    if found is None:
        raise FileNotFoundError(
            f"fashion-mnist: no {names[0]}(.gz) with its labels in {', '.join(map(str, folders))}. "
            "--download fetches it; so does Debian's package dataset-fashion-mnist."
        )
    pixels = as_pixels(read_idx(found[0]))
    targets = as_targets(read_idx(found[1]), len(pixels))
    return Arrays(pixels=pixels, targets=targets, classes=FASHION_CLASSES)


def _idx_pair(folders: tuple[Path, ...], names: tuple[str, str]) -> tuple[Path, Path] | None:
    """Return the files of images and labels in the first folder that has both."""
    for folder in folders:
        for ending in ("", ".gz"):
            images, labels = (folder / (name + ending) for name in names)
            if images.is_file() and labels.is_file():
                return images, labels
    return None


def _torchvision(kind: str, split: str, root: Path, download: bool) -> Arrays:
    """Read CIFAR10, CIFAR100 or STL10 with torchvision."""
    dataset: Any = getattr(import_module("torchvision.datasets"), kind)
    which: dict[str, Any] = {"train": split == "train"}
    if kind == "STL10":
        which = {"split": "train+unlabeled" if split == "train" else "test"}
    try:
        found = dataset(str(root), **which, download=download)
    except RuntimeError as error:
        if download:
            raise  # its message says what went wrong
        raise FileNotFoundError(
            f"{kind.lower()}: no intact {root / dataset.base_folder} ({error}). --download fetches it."
        ) from error
    targets = np.asarray(found.labels if kind == "STL10" else found.targets)
    pixels = as_pixels(np.asarray(found.data))
    classes = tuple(getattr(found, "classes", ())) or tuple(str(i) for i in range(targets.max() + 1))
    return Arrays(pixels=pixels, targets=as_targets(targets, len(pixels)), classes=classes)


def _by_hand(
    folder: str, how: str, read: Callable[[Path, str], Source], split: str, root: Path, download: bool
) -> Source:
    """Read image files that the user has put into ``root / folder``."""
    if not (root / folder / "train").is_dir():
        raise FileNotFoundError(f"there is no {root / folder / 'train'}, and it cannot be downloaded: {how}.")
    return read(root / folder, split)


def _imagenet(folder: Path, split: str) -> Files:
    return list_files(folder, split, test_folders=("val",))  # ImageNet's own test folder has no labels


SCENE_SEEDS = {"train": 0, "all": 0, "test": 1}
DATASETS = {
    "fashion-scenes": Dataset(
        "the same 12,000 garments on cluttered canvases, 36 px grey, 10 classes; made when it is read", _fashion_scenes
    ),
    "fashion-mini": Dataset(
        "12,000 images of Fashion-MNIST, 28 px grey, 10 classes; part of this package", _fashion_mini
    ),
    "fashion-mnist": Dataset("Fashion-MNIST: 60,000 + 10,000 images, 28 px grey, 10 classes", _fashion_mnist),
    "cifar10": Dataset("CIFAR-10: 50,000 + 10,000 images, 32 px, 10 classes", partial(_torchvision, "CIFAR10")),
    "cifar100": Dataset("CIFAR-100: 50,000 + 10,000 images, 32 px, 100 classes", partial(_torchvision, "CIFAR100")),
    "stl10": Dataset(
        "STL-10: 5,000 labelled and 100,000 unlabelled + 8,000 images, 96 px, 10 classes",
        partial(_torchvision, "STL10"),
    ),
    "tiny-imagenet": Dataset(
        "Tiny ImageNet: 100,000 + 10,000 images, 64 px, 200 classes; not downloadable",
        partial(
            _by_hand,
            "tiny-imagenet-200",
            "unpack tiny-imagenet-200.zip, of Stanford's course CS231n, there: train/<wnid>/images/*.JPEG, "
            "val/images/*.JPEG and val/val_annotations.txt",
            read_tiny_imagenet,
        ),
    ),
    "imagenet100": Dataset(
        "a hundred classes of ImageNet: about 129,000 + 5,000 photos; not downloadable",
        partial(
            _by_hand,
            "imagenet100",
            "copy or link the hundred class folders of ImageNet there: train/<wnid>/*.JPEG and val/<wnid>/*.JPEG",
            _imagenet,
        ),
    ),
    "imagenet": Dataset(
        "ImageNet (ILSVRC2012): 1,281,167 + 50,000 photos, 1,000 classes; not downloadable",
        partial(
            _by_hand,
            "imagenet",
            "get ILSVRC2012 from image-net.org and sort it into train/<wnid>/*.JPEG and val/<wnid>/*.JPEG",
            _imagenet,
        ),
    ),
}
