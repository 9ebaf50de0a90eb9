"""Images that a caller gives in Python: paths, contents of files, PIL images, arrays and tensors.

A file or a PIL image is a photo, which is decoded to a square as ``decode`` does. An array or a tensor already has the
pixels that the encoder should see, like those of an .npy file: it is only scaled.
"""

import os
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from glf.data.arrays import as_pixels, as_png
from glf.data.batches import to_tensor
from glf.data.decode import SizeLimits, decode, decode_alone, decode_opened
from glf.data.files import MAX_BYTES
from glf.data.listed import write_list
from glf.files import atomic_write, printable, read_regular

EXPECTED = "give a path, the bytes of a file, a PIL image, an array, a tensor, or a list of these"


def as_images(images: Any) -> list[Any] | NDArray[np.uint8] | Tensor:
    """Return one or more images as a list, an array (image, height, width, channel) or a tensor (image, channel, ...).

    An array of three dimensions is one image if the last dimension is that of channels, else it is grey images.
    """
    if isinstance(images, Tensor):
        found: Any = images if images.ndim == 4 else images[None]
        if found.ndim != 4 or found.shape[1] not in (1, 3):
            raise ValueError(
                f"a tensor of shape {tuple(images.shape)}; expected (n, channel, height, width) with one or three"
                " channels"
            )
    elif isinstance(images, np.ndarray) and images.dtype.kind not in "OSU":
        single = images.ndim == 2 or (images.ndim == 3 and images.shape[2] in (1, 3))
        found = as_pixels(images[None] if single else images)
    elif isinstance(images, str | os.PathLike | bytes | Image.Image):
        found = [images]
    elif isinstance(images, Iterable) and not isinstance(images, Mapping | Set):
        found = list(images)
    else:
        raise ValueError(f"{type(images).__name__} is no image: {EXPECTED}")
    if len(found) == 0:
        raise ValueError(f"no images: {EXPECTED}")
    return found  # type: ignore[no-any-return]


def as_tensor(image: Any, channels: int, limits: SizeLimits) -> Tensor:
    """Return one image of a list as a tensor (channel, height, width), its pixels as those of a set of its kind.

    A photo becomes a square by ``limits``, with grey in all channels.
    """
    if isinstance(image, Tensor | np.ndarray):
        one = as_images(image)
        if len(one) != 1:
            raise ValueError(f"an array of shape {tuple(image.shape)} in a list is more than one image")
        return one[0] if isinstance(one, Tensor) else to_tensor(np.array(one))[0]
    pixels = _photo(image, limits)
    if pixels.shape[2] > channels:
        raise ValueError(f"{_called(image)} is in colour, and the encoder was trained on grey images")
    return torch.from_numpy(np.array(np.broadcast_to(pixels, (*pixels.shape[:2], channels)))).permute(2, 0, 1)


def _photo(image: Any, limits: SizeLimits) -> NDArray[np.uint8]:
    content: Any = image
    if isinstance(image, str | os.PathLike):
        if os.path.isdir(image):
            raise ValueError(f"{_called(image)} is a folder: give its files, or use `glf embed`")
        content = read_regular(os.fspath(image), MAX_BYTES)
    elif not isinstance(image, bytes | Image.Image):
        raise ValueError(f"{type(image).__name__} is no image: {EXPECTED}")
    try:
        return decode_alone(content, limits) if isinstance(content, bytes) else decode_opened(content, limits)
    except Exception as error:  # PIL's plugins raise almost anything on a broken file
        raise ValueError(f"{_called(image)} cannot be read as an image ({error}): give another one") from error


def _called(image: Any) -> str:
    return printable(os.fspath(image)) if isinstance(image, str | os.PathLike) else f"a {type(image).__name__}"


def save_images(images: list[Any] | NDArray[np.uint8] | Tensor, path: Path) -> Path:
    """Write images as data that every command reads, to ``path`` with a suffix; return its path.

    Arrays become an .npy file, paths a .csv of them; other images are first written as files of their own.
    """
    if isinstance(images, Tensor):
        images = as_pixels(images.detach().cpu().numpy())
    if isinstance(images, np.ndarray):
        saved = path.with_name(f"{path.name}.npy")
        with atomic_write(saved) as partial, open(partial, "wb") as file:
            np.save(file, images)
        return saved
    names = []
    for i, image in enumerate(images):
        name = image if isinstance(image, str | os.PathLike) else path / f"{i:07}.png"
        if name is not image:
            path.mkdir(parents=True, exist_ok=True)
            _write_png(image, path / f"{i:07}.png")
        names.append(name)
    saved = path.with_name(f"{path.name}.csv")
    write_list(saved, names)
    return saved


def _write_png(image: Any, file: Path) -> None:
    """Write one image of a list, upright, without alpha and in 8 bits."""
    if isinstance(image, Tensor | np.ndarray):
        array: Any = as_images(image)
        pixels = as_pixels(array.detach().cpu().numpy() if isinstance(array, Tensor) else array)[0]
    else:
        pixels = decode(image) if isinstance(image, bytes) else decode_opened(image)
    file.write_bytes(as_png(pixels))
