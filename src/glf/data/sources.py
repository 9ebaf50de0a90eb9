"""A name or a path -> images: the one function through which all data come in."""

import os
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from glf.config.base import nearest
from glf.config.training import Labels, Store
from glf.data.arrays import Arrays, read_npy, read_npz
from glf.data.datasets import is_tiny_imagenet, read_published, read_tiny_imagenet
from glf.data.files import Files, find
from glf.data.image_cache import load_or_build
from glf.data.images import ImageSet, array_key, to_memory
from glf.data.shards.index import is_stream

Split = Literal["train", "test"]

SOURCES = {
    "fashion-mini": "12,000 images of Fashion-MNIST, 28 px grey, 10 classes; part of this package",
    "fashion-mnist": "Fashion-MNIST: 60,000 + 10,000 images, 28 px grey, 10 classes",
    "cifar10": "CIFAR-10: 50,000 + 10,000 images, 32 px, 10 classes",
    "cifar100": "CIFAR-100: 50,000 + 10,000 images, 32 px, 100 classes",
    "stl10": "STL-10: 5,000 labelled and 100,000 unlabelled + 8,000 images, 96 px, 10 classes",
    "tiny-imagenet": "Tiny ImageNet: 100,000 + 10,000 images, 64 px, 200 classes; not downloadable",
    "imagenet100": "a hundred classes of ImageNet: about 129,000 + 5,000 photos; not downloadable",
    "imagenet": "ImageNet (ILSVRC2012): 1,281,167 + 50,000 photos, 1,000 classes; not downloadable",
}
PATHS = "a folder of images, a .tar of images, an .npz or an .npy file"


def data_root() -> Path:
    """Where the sets known by name are looked for: GLF_DATA, or a folder below the user's home."""
    return Path(os.environ.get("GLF_DATA") or Path.home() / ".cache" / "glf" / "data")


def load(
    data: str,
    split: Split = "train",
    *,
    size: int | None = None,
    root: Path | None = None,
    labels: Labels = "auto",
    store: Store = "auto",
    download: bool = False,
    progress: bool = True,
) -> ImageSet:
    """The images of one split of a named set (see ``SOURCES``) or of a path.

    A name wins over a folder of the same name; ``./cifar10`` is the folder. ``size`` is the crop that
    training wants: files are decoded to somewhat more than it, arrays keep their size. ``labels="none"``
    forgets the labels. ``store`` says whether image files are packed once or decoded whenever they are asked for;
    the images are the same. The network is used only with ``download``.

    >>> images = load("fashion-mini", "test")
    >>> len(images), images.size, images.channels, images.classes[9]
    (2000, (28, 28), 1, 'Ankle boot')
    """
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {get_args(Split)}, got {split!r}")
    if labels not in get_args(Labels):
        raise ValueError(f"labels must be one of {get_args(Labels)}, got {labels!r}")
    if store not in get_args(Store):
        raise ValueError(f"store must be one of {get_args(Store)}, got {store!r}")
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    found = find_source(data, split, root=root, download=download)
    if isinstance(found, Files):
        pixels, rows, skipped, key = load_or_build(found, size=size, store=store, progress=progress)
        targets, skipped = found.targets[rows], (*found.missed, *skipped)
        if isinstance(pixels, np.ndarray):
            pixels = to_memory(pixels)
    else:
        pixels, targets, skipped = to_memory(found.pixels), found.targets, ()
        key = array_key(pixels)
    classes = found.classes
    if labels == "none":
        targets, classes = np.full_like(targets, -1), ()
    return ImageSet(name=data, pixels=pixels, targets=targets, classes=classes, key=key, skipped=skipped)


def find_source(data: str, split: str, *, root: Path | None = None, download: bool = False) -> Arrays | Files:
    """The arrays or the files behind a name or a path, before any image is decoded.

    Of a folder and of a tar, ``all`` are all images that it holds; of arrays and of named sets, those of ``train``.
    """
    if data in SOURCES:
        split = "train" if split == "all" else split
        return read_published(data, split, root=root or data_root(), download=download)
    return _read_path(data, split)


def _read_path(data: str, split: str) -> Arrays | Files:
    if is_stream(data):
        raise ValueError(
            f"{data!r} is a stream of shards, which only pretraining reads: give the images that they hold"
        )
    arrays = "train" if split == "all" else split
    path = Path(data).expanduser()
    if not data or not path.exists():
        raise ValueError(_not_found(data, path))
    if path.is_dir():
        tiny = split != "all" and is_tiny_imagenet(path)
        return read_tiny_imagenet(path, split) if tiny else find(path, split)
    ending = path.suffix.lower()
    if ending == ".npz":
        return read_npz(path, arrays)
    if ending == ".npy":
        return read_npy(path, arrays)
    if ending == ".tar":
        return find(path, split)
    hint = "; decompress it first" if path.name.lower().endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")) else ""
    raise ValueError(f"{data!r} is a file of another kind{hint}; expected {PATHS}")


def _not_found(data: str, path: Path) -> str:
    """Says what does not exist, and what was probably meant: a name or a neighbour of the path."""
    beside = os.listdir(path.parent) if path.parent.is_dir() else []
    meant = nearest(data.lower(), SOURCES) or nearest(path.name, beside)
    return (
        f"no such file or folder, and no data set of that name: {data!r}{meant}"
        f" (expected {PATHS}, or one of {', '.join(SOURCES)})"
    )
