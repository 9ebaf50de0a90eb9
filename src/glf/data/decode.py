"""The bytes of one image file -> upright uint8 pixels without alpha, grey or RGB."""
# MERGED DOCS:
# | """What every image of a set of files is brought to: one side, one number of channels."""

import contextlib
import io
import math
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.nn import functional as F

EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".webp",
    ".gif",
    ".bmp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".avif",
    ".jp2",
)
TILE_WIDTH, TILE_HEIGHT, PHOTOMETRIC = 322, 323, 262  # TIFF's numbers for them
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")


LARGE = 2**24  # pixels from which on images are decoded one at a time, whatever the number of threads
_one_at_a_time = threading.Lock()


def decode(data: bytes, *, side: int | None = None, least: int | None = None) -> NDArray[np.uint8]:
    """Pixels (height, width, channel) of an image; with ``side``, of its central square resized to that.

    One channel if the image is grey, else three. EXIF orientation is applied, transparency becomes white,
    16-bit grey is scaled to 8 bits, of an animation the first frame is taken. A JPEG that has more than twice ``side``,
    or more than twice ``least``, is decoded at a fraction of its size. Raises whatever is wrong with the bytes: PIL's
    plugins raise almost any exception on a broken file.
    """
    if not data:
        raise ValueError("empty file")
    image = _opened(data)
    full, wanted = image.size, side or least
    if wanted is not None:
        # A JPEG is decoded at 1/2, 1/4 or 1/8 of its size when that leaves at least twice what is wanted, so
        # that the filter below still does the last halving and the result hardly differs.
        image.draft(None, (2 * wanted, 2 * wanted))
    _check_sizes(image, full)
    with _one_at_a_time if _is_large(image, full) else contextlib.nullcontext():
        image.load()
        with contextlib.suppress(Exception):  # the pixels are fine: a broken EXIF block is no reason to lose them
            ImageOps.exif_transpose(image, in_place=True)
        image = _flat(image)
        pixels = np.asarray(image)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        return pixels if side is None else _square(pixels, side)


def header_size(data: bytes) -> tuple[int, int]:
    """Width and height as the file's header has them, before EXIF turns the image."""
    return _opened(data).size


def _opened(data: bytes) -> Image.Image:
    """The image's header."""
    try:
        return Image.open(io.BytesIO(data), formats=_formats())
    except UnidentifiedImageError:  # its own message is the address of a buffer
        raise ValueError(f"not an image in a format among {', '.join(_formats())}") from None
    except Image.DecompressionBombError:  # its own message has another limit than ours below
        raise ValueError(f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels") from None


def _check_sizes(image: Image.Image, full: tuple[int, int]) -> None:
    """Raises where decoding would take more memory than the largest image that is allowed: PIL's MAX_IMAGE_PIXELS.

    PIL itself raises only at twice that and warns below. A filter that turns warnings into errors is shared by all
    threads, so the limit is checked here. It is one of what is decoded: a JPEG's fraction counts, unless it is
    progressive, because then its coefficients are held whole. A TIFF may claim tiles far larger than its image.
    """
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and math.prod(full if "progressive" in image.info else image.size) > limit:
        raise ValueError(f"{full[0]} x {full[1]} pixels, more than {limit:,}")
    tags = getattr(image, "tag_v2", {})
    tile = tags.get(TILE_WIDTH, 0) * tags.get(TILE_HEIGHT, 0)
    if tile > max(LARGE, math.prod(full)):
        raise ValueError(f"tiles of {tile:,} pixels in an image of {math.prod(full):,}")


def _is_large(image: Image.Image, full: tuple[int, int]) -> bool:
    """Whether decoding takes so much memory that two at once may be too many; a JPEG's fraction may hide some."""
    return max(math.prod(image.size), math.prod(full) // 4) > LARGE


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings of PIL: what matters about a file is either an error or nothing, and there are many files.

    Around a whole set or a whole batch, not around ``decode``: the filters are shared by all threads.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


@cache
def _formats() -> tuple[str, ...]:
    """The formats this PIL has. A closed list, because some of PIL's plugins start other programs (EPS)."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _flat(image: Image.Image) -> Image.Image:
    """To mode L or RGB, what is transparent on white."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _eight_bits(image)
    grey = image.mode in ("1", "L", "LA")
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if grey else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, or floats from 0 to 1, to mode L. Other ranges have no known white, so they raise."""
    values = np.asarray(image)
    top = 1 if image.mode == "F" else 65535
    low, high = values.min(), values.max()
    if not 0 <= low <= high <= top:
        raise ValueError(f"mode {image.mode} with values from {low} to {high}, expected 0 to {top}")
    grey = np.rint(values * (255 / top)).astype(np.uint8)
    if getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == 0:  # white is zero, which PIL minds only up to 8 bits
        grey = 255 - grey
    if "transparency" in image.info:
        grey = np.where(values == image.info["transparency"], np.uint8(255), grey)
    return Image.fromarray(grey)


def _square(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """The central square, resized to ``side`` by the bilinear filter, antialiased, as torchvision's Resize has it.

    The same as resizing the short side and then cropping, but a strip of 1 x 10,000 pixels stays small on
    the way. Its corner is a whole pixel of what was decoded. By torch, which takes half of PIL's time and rounds alike.
    """
    height, width = pixels.shape[:2]
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    square = np.array(pixels[top : top + short, left : left + short])  # a copy: PIL's own bytes are not to be written
    if short == side:
        return square
    image = torch.from_numpy(square).unsqueeze(0).permute(0, 3, 1, 2)  # strides that say channels last: thrice as fast
    resized = F.interpolate(image, (side, side), mode="bilinear", antialias=True, align_corners=False)
    result: NDArray[np.uint8] = resized[0].permute(1, 2, 0).numpy()
    return result


class StoredSize(NamedTuple):
    """Side and channels of every image, whether they are stored or decoded again at every epoch."""

    side: int
    channels: int
    resized: bool  # or all images have this side by themselves

    @property
    def nbytes(self) -> int:
        return self.side**2 * self.channels


class SizeLimits(NamedTuple):
    keep: int  # images of one square size up to this are kept as they are
    full: int  # any others are resized to this


def side_limits(size: int | None) -> SizeLimits:
    """What the crop that training wants means for the images: a margin of 8/7, as 256 is to 224.

    >>> side_limits(32), side_limits(None)
    (Limits(keep=37, full=37), Limits(keep=96, full=256))
    """
    full = round((224 if size is None else size) * 8 / 7)
    return SizeLimits(96 if size is None else full, full)


def decode_as(data: bytes, shape: StoredSize | None, limits: SizeLimits | None = None) -> NDArray[np.uint8]:
    """The image as a set of this shape has it, except that a grey one keeps its one channel.

    Within ``limits``, an image that does not fit the shape need not come in its full size: none that is kept is larger
    than ``limits.full``.
    """
    if shape is not None and shape.resized:
        return decode(data, side=shape.side)
    return decode(data, least=limits.full if limits is not None else None)


def needed_shape(pixels: NDArray[np.uint8], shape: StoredSize | None, limits: SizeLimits) -> StoredSize:
    """The shape for all images so far, which had ``shape``, and this one, decoded like them."""
    height, width, channels = pixels.shape
    if shape is None:
        kept = height == width <= limits.keep
        return StoredSize(height if kept else limits.full, channels, not kept)
    kept = height == width == shape.side and not shape.resized
    return StoredSize(height if kept else limits.full, max(channels, shape.channels), not kept)
