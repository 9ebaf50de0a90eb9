"""Images that are arrays already: .npz and .npy files, and the idx files of the MNIST family."""

import gzip
import hashlib
import io
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from glf.data.files import MAX_BYTES
from glf.data.npy import array_of, explain_bad_array, load_array
from glf.data.source import MAX_CLASSES, MissingSplit, Source
from glf.files import read_regular

# split -> names of its images and labels, for each convention in use; the first one found in the file counts
CONVENTIONS: tuple[dict[str, tuple[str, str]], ...] = (
    {"train": ("train_images", "train_labels"), "test": ("test_images", "test_labels")},
    {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")},
    {"train": ("images", "labels"), "test": ("test_images", "test_labels")},
)
MANY_CLASSES = 50_000  # more of them than images are a mistake, for which classifiers would take all memory
BLOCK = 1024  # images hashed at a time, so that a memory-mapped array never has to fit in memory


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays(Source):
    """One split of a data set that is an array of pixels."""

    pixels: NDArray[np.uint8]  # (image, height, width, channel)
    targets: NDArray[np.int64]
    classes: tuple[str, ...]

    @cached_property
    def key(self) -> str:
        return array_key(self.pixels)

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, i: int) -> str:
        return f"{i}.png"

    def path(self, i: int) -> str:
        return str(i)

    def read(self, i: int) -> bytes:
        """Return image ``i`` as a PNG file."""
        return as_png(self.pixels[i])


def array_key(pixels: NDArray[np.uint8]) -> str:
    """Return 16 hex digits: a hash of the array's shape and of all its bytes."""
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=8)
    for start in range(0, len(pixels), BLOCK):
        digest.update(np.ascontiguousarray(pixels[start : start + BLOCK]).data)
    return digest.hexdigest()


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return one image (height, width, channel) as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def read_npz(path: Path, split: str) -> Arrays:
    """Read one split of an .npz file (``all`` is ``train``); an array of strings ``classes`` names the labels."""
    split = "train" if split == "all" else split
    with explain_bad_array(f"{path} is not an .npz file of images"), load_array(path, np.lib.npyio.NpzFile) as archive:
        names = next((c for c in CONVENTIONS if c["train"][0] in archive), None)
        if names is None:
            expected = ", ".join(repr(c["train"][0]) for c in CONVENTIONS)
            raise ValueError(f"it has the arrays {sorted(archive)}, but none of {expected}")
        splits = [s for s, (images, _) in names.items() if images in archive]
        if split not in splits:
            raise MissingSplit(f"{path} has no split {split!r}, it has {', '.join(splits)}")
        images, labels = names[split]
        pixels = as_pixels(array_of(archive, images))
        if labels not in archive:
            return Arrays(pixels=pixels, targets=np.full(len(pixels), -1, np.int64), classes=())
        targets = as_targets(array_of(archive, labels), len(pixels))
        if "classes" in archive:
            classes = tuple(str(name) for name in array_of(archive, "classes"))
            if len(targets) and targets.max() >= len(classes):
                raise ValueError(f"label {targets.max()}, but only {len(classes)} classes")
        else:  # counted over both splits, because one may lack the last class
            others = [array_of(archive, n) for _, n in names.values() if n in archive and n != labels]
            every = [targets, *(as_targets(other, len(other)) for other in others if other.size)]
            top, count = max(int(one.max()) for one in every), sum(map(len, every))
            if top >= max(MANY_CLASSES, count):
                raise ValueError(f"label {top}, but only {count:,} images: number the classes from 0")
            classes = tuple(str(i) for i in range(top + 1))
        return Arrays(pixels=pixels, targets=targets, classes=classes)


def read_npy(path: Path, split: str) -> Arrays:
    """Read an .npy file as an unlabelled training split; memory-mapped if it is uint8 with the channels last."""
    if split not in ("train", "all"):
        raise MissingSplit(f"{path} has no split {split!r}, it has train")
    with explain_bad_array(f"{path} is not an .npy file of images"):
        pixels = as_pixels(load_array(path, np.ndarray))
    return Arrays(pixels=pixels, targets=np.full(len(pixels), -1, np.int64), classes=())


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an array of bytes in MNIST's idx format, gzipped or not."""
    with explain_bad_array(f"{path} is not an idx file of bytes"):
        data = read_regular(path, MAX_BYTES)
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        if data[:3] != b"\x00\x00\x08" or len(data) < 4 + 4 * data[3]:
            raise ValueError(f"it begins with {data[:4]!r}")
        shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
        values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
        if values.size != shape.prod(dtype=np.int64):
            raise ValueError(f"it should hold {shape.tolist()} values, but holds {values.size}")
        return values.reshape(shape)


def as_pixels(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return images in any common layout as uint8 (image, height, width, channel)."""
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or (array.shape[3] not in (1, 3) and array.shape[1] not in (1, 3)):
        raise ValueError(
            f"images of shape {array.shape}; expected (n, height, width), (n, height, width, channel) or "
            "(n, channel, height, width) with one or three channels"
        )
    if 0 in array.shape:
        raise ValueError(f"no pixels in an array of shape {array.shape}")
    if array.shape[3] not in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if np.issubdtype(array.dtype, np.floating):
        low, high = array.min(), array.max()
        if not 0 <= low <= high <= 1:
            raise ValueError(f"floating-point images with values from {low} to {high}; expected 0 to 1")
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ValueError(f"images of type {array.dtype}; expected uint8, or floating point from 0 to 1")
    return np.ascontiguousarray(array) if not array.flags.c_contiguous else array


def as_targets(labels: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Return integer labels (n,) or (n, 1) as int64 (n,); -1 means no label."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels of type {labels.dtype} and shape {labels.shape}; expected {count} integers")
    if labels.min() < -1:
        raise ValueError(f"label {labels.min()}; expected 0 and up, or -1 for none")
    if labels.max() >= MAX_CLASSES:
        raise ValueError(f"label {labels.max()}, but at most {MAX_CLASSES:,} classes: number them from 0")
    return labels.astype(np.int64)
