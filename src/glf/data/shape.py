"""What every image of a set of files is brought to: one side, one number of channels."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.data.decode import decode


class Shape(NamedTuple):
    """Side and channels of every image, whether they are stored or decoded again at every epoch."""

    side: int
    channels: int
    resized: bool  # or all images have this side by themselves

    @property
    def nbytes(self) -> int:
        return self.side**2 * self.channels


class Limits(NamedTuple):
    keep: int  # images of one square size up to this are kept as they are
    full: int  # any others are resized to this


def side_limits(size: int | None) -> Limits:
    """What the crop that training wants means for the images: a margin of 8/7, as 256 is to 224.

    >>> side_limits(32), side_limits(None)
    (Limits(keep=37, full=37), Limits(keep=96, full=256))
    """
    full = round((224 if size is None else size) * 8 / 7)
    return Limits(96 if size is None else full, full)


def decode_as(data: bytes, shape: Shape | None, limits: Limits | None = None) -> NDArray[np.uint8]:
    """The image as a set of this shape has it, except that a grey one keeps its one channel.

    Within ``limits``, an image that does not fit the shape need not come in its full size: none that is kept is larger
    than ``limits.full``.
    """
    if shape is not None and shape.resized:
        return decode(data, side=shape.side)
    return decode(data, least=limits.full if limits is not None else None)


def needed_shape(pixels: NDArray[np.uint8], shape: Shape | None, limits: Limits) -> Shape:
    """The shape for all images so far, which had ``shape``, and this one, decoded like them."""
    height, width, channels = pixels.shape
    if shape is None:
        kept = height == width <= limits.keep
        return Shape(height if kept else limits.full, channels, not kept)
    kept = height == width == shape.side and not shape.resized
    return Shape(height if kept else limits.full, max(channels, shape.channels), not kept)
