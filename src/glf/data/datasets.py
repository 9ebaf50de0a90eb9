"""The data sets known by name, read in the layout in which they are published."""

from importlib import import_module
from importlib.resources import as_file
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import numpy as np

from glf.data.arrays import Arrays, as_pixels, as_targets, read_idx, read_npz
from glf.data.files import Files, find

DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts it
FASHION = (
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
TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "stl10": "STL10"}
BY_HAND = {
    "tiny-imagenet": (
        "tiny-imagenet-200",
        "unpack tiny-imagenet-200.zip, of Stanford's course CS231n, there: train/<wnid>/images/*.JPEG, "
        "val/images/*.JPEG and val/val_annotations.txt",
    ),
    "imagenet100": (
        "imagenet100",
        "copy or link the hundred class folders of ImageNet there: train/<wnid>/*.JPEG and val/<wnid>/*.JPEG",
    ),
    "imagenet": (
        "imagenet",
        "get ILSVRC2012 from image-net.org and sort it into train/<wnid>/*.JPEG and val/<wnid>/*.JPEG",
    ),
}


def read_published(name: str, split: str, *, root: Path, download: bool) -> Arrays | Files:
    """One split of the set of that name below ``root``; only ``download`` ever makes it use the network."""
    if name == "fashion-mini":
        with as_file(resources("glf.data") / "embedded" / "fashion_mini.npz") as path:
            return read_npz(path, split)
    if name == "fashion-mnist":
        return _fashion_mnist(split, root, download)
    if name in TORCHVISION:
        return _torchvision(name, split, root, download)
    folder, how = BY_HAND[name]
    if not (root / folder / "train").is_dir():
        raise FileNotFoundError(
            f"{name}: there is no {root / folder / 'train'}. It cannot be downloaded automatically: {how}."
        )
    if name == "tiny-imagenet":
        return read_tiny_imagenet(root / folder, split)
    return find(root / folder, split, test_folders=("val",))  # ImageNet's own test folder has no labels


def is_tiny_imagenet(folder: Path) -> bool:
    """Whether the validation labels are where Tiny ImageNet has them, and only it."""
    return (folder / "val" / "val_annotations.txt").is_file()


def read_tiny_imagenet(folder: Path, split: str) -> Files:
    """Tiny ImageNet; the test split is its val, labelled by a text file: its own test has no labels."""
    train = find(folder, "train", test_folders=())
    if split == "train":
        return train
    files = find(folder, "test", test_folders=("val",))
    listing = folder / "val" / "val_annotations.txt"
    wnids = dict(line.split("\t")[:2] for line in listing.read_text().splitlines())
    names = [wnids.get(Path(entry.name).name, "") for entry in files.entries]
    for entry, name in zip(files.entries, names, strict=True):
        if name not in train.classes:
            raise ValueError(f"{listing} gives {entry.name} the class {name!r}, which is none of train's")
    return files.labelled(names, list(train.classes))


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
    return Arrays(pixels, as_targets(read_idx(found[1]), len(pixels)), FASHION)


def _idx_pair(folders: tuple[Path, ...], names: tuple[str, str]) -> tuple[Path, Path] | None:
    """The files of images and labels in the first folder that has both."""
    for folder in folders:
        for ending in ("", ".gz"):
            images, labels = (folder / (name + ending) for name in names)
            if images.is_file() and labels.is_file():
                return images, labels
    return None


def _torchvision(name: str, split: str, root: Path, download: bool) -> Arrays:
    kind: Any = getattr(import_module("torchvision.datasets"), TORCHVISION[name])
    which: dict[str, Any] = {"train": split == "train"}
    if name == "stl10":
        which = {"split": "train+unlabeled" if split == "train" else "test"}
    try:
        found = kind(str(root), **which, download=download)
    except RuntimeError as error:
        if download:
            raise  # it says what went wrong on the way
        raise FileNotFoundError(
            f"{name}: no intact {root / kind.base_folder} ({error}). --download fetches it."
        ) from error
    targets = np.asarray(found.labels if name == "stl10" else found.targets)
    pixels = as_pixels(np.asarray(found.data))
    classes = tuple(getattr(found, "classes", ())) or tuple(str(i) for i in range(targets.max() + 1))
    return Arrays(pixels, as_targets(targets, len(pixels)), classes)
