"""Images that a caller gives in Python: paths, contents of files, PIL images, arrays and tensors.

A file or a PIL image is a photo, which is decoded to a square as ``decode`` does. An array or a tensor already has the
pixels that the encoder should see, like those of an .npy file: it is only scaled.
"""

import os
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from glf.data.arrays import as_pixels
from glf.data.batches import to_tensor
from glf.data.decode import SizeLimits, decode_alone, decode_opened
from glf.data.files import MAX_BYTES
from glf.files import printable, read_regular

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
