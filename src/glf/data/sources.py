"""From a name or a path to images: ``find_source`` lists them, ``load_images`` decodes them. All data enter here."""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from glf.config.base import nearest
from glf.config.training import Labels, Store
from glf.data.arrays import read_npy, read_npz
from glf.data.datasets import DATASETS, is_tiny_imagenet, read_tiny_imagenet
from glf.data.files import list_files
from glf.data.image_cache import load_or_build
from glf.data.images import DecodeOnRead, ImageSet, to_memory
from glf.data.listed import read_listed
from glf.data.shards.index import is_stream
from glf.data.source import Source
from glf.data.tables.find import Table, find_table
from glf.data.tables.hub import hub_table
from glf.data.tables.options import HUB, is_hub, parse_address

Split = Literal["train", "test"]


def _read_folder(path: Path, split: str) -> Source:
    table = find_table(path)
    if table is not None:
        return _read_table(table, split)
    return read_tiny_imagenet(path, split) if split != "all" and is_tiny_imagenet(path) else list_files(path, split)


def _read_table(table: Table, split: str) -> Source:
    if find_spec("pyarrow") is None:
        raise ValueError(f"{table.where} needs pyarrow: pip install 'glf[parquet]'")
    from glf.data.tables.rows import read_table

    return read_table(table, split)


def _read_table_at(path: Path, split: str, options: Mapping[str, str] | None = None) -> Source:
    table = find_table(path, options)
    if table is None:
        raise ValueError(f"{path} is no table with columns, so {dict(options or {})} means nothing: leave it out")
    return _read_table(table, split)


# How a path is opened, by its suffix: one line per kind of source
READERS: dict[str, tuple[str, Callable[[Path, str], Source]]] = {
    "/": ("a folder of images", _read_folder),
    ".tar": ("a .tar of images", list_files),
    ".csv": ("a .csv of paths", read_listed),
    ".npz": ("an .npz", read_npz),
    ".npy": ("an .npy", read_npy),
    ".parquet": ("a .parquet", _read_table_at),
    ".arrow": ("an .arrow file", _read_table_at),
}


def data_root() -> Path:
    """Return the folder of the named data sets: GLF_DATA, or a folder in the user's home."""
    return Path(os.environ.get("GLF_DATA") or Path.home() / ".cache" / "glf" / "data")


def load_images(
    data: str,
    split: Split = "train",
    *,
    source: Source | None = None,
    size: int | None = None,
    root: Path | None = None,
    labels: Labels = "auto",
    store: Store = "auto",
    download: bool = False,
    progress: bool = True,
) -> ImageSet:
    """Load one split of a named data set (see ``DATASETS``) or of a path.

    A name wins over a folder of the same name; ``./cifar10`` is the folder. ``size`` is the crop that training uses:
    image files are decoded to slightly more than it, arrays keep their size. ``labels="none"`` drops the labels.
    ``store`` says whether decoded image files are cached or decoded whenever they are read; the pixels are the same.
    ``source`` is what ``find_source`` returned for this data and split, if it was called before. The network is used
    only with ``download``.

    >>> images = load_images("fashion-mini", "test")
    >>> len(images), images.size, images.channels, images.classes[9]
    (2000, (28, 28), 1, 'Ankle boot')
    """
    for name, value, kind in (("split", split, Split), ("labels", labels, Labels), ("store", store, Store)):
        if value not in get_args(kind):
            raise ValueError(f"{name} must be one of {get_args(kind)}, got {value!r}")
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if source is None:
        source = find_source(data, split, root=root, download=download)
    targets, classes, skipped = source.targets, source.classes, source.skipped
    pixels: NDArray[np.uint8] | DecodeOnRead
    if source.pixels is not None:
        pixels, key = source.pixels, source.key
    else:
        pixels, indices, undecodable, key = load_or_build(source, size=size, store=store, progress=progress)
        targets, skipped = targets[indices], (*skipped, *undecodable)
    if isinstance(pixels, np.ndarray):
        pixels = to_memory(pixels)
    if labels == "none":
        targets, classes = np.full_like(targets, -1), ()
    return ImageSet(name=data, pixels=pixels, targets=targets, classes=classes, key=key, skipped=skipped)


def find_source(data: str, split: str, *, root: Path | None = None, download: bool = False) -> Source:
    """Return the images of a name or a path, before any is decoded.

    The split ``all`` is all images of a folder or a tar; of arrays and named data sets, the training images.
    """
    if data in DATASETS:
        return DATASETS[data].read("train" if split == "all" else split, root or data_root(), download)
    if is_stream(data):
        raise ValueError(
            f"{data!r} is a stream of shards, which `glf pretrain` and `glf embed --part` read: give the images"
        )
    address = parse_address(data)
    if is_hub(data):
        return _read_table(hub_table(address, download), split)
    path = Path(os.path.expanduser(address.base))
    if not data or not path.exists():
        nearby = os.listdir(path.parent) if path.parent.is_dir() else []
        meant = nearest(data.lower(), DATASETS) or nearest(path.name, nearby)
        raise ValueError(
            f"no such file or folder, and no data set of that name: {data!r}{meant}"
            f" (expected {_expected()}, {HUB}user/name, or one of {', '.join(DATASETS)})"
        )
    if address.options:
        return _read_table_at(path, split, address.options)
    suffix = "/" if path.is_dir() else path.suffix.lower()
    if suffix in READERS:
        return READERS[suffix][1](path, split)
    hint = "; decompress it first" if path.name.lower().endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")) else ""
    raise ValueError(f"{data!r} is a file of another kind{hint}; expected {_expected()}")


def _expected() -> str:
    *most, last = (words for words, _ in READERS.values())
    return f"{', '.join(most)} or {last}"
