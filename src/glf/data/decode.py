"""Decode an image file to uint8 pixels: upright, without alpha, grey or RGB; and the size that all images of a set get.

Images of one small square size keep it. Any others become squares with a margin around the crop that training uses:
``square`` has the rule for images that are not square.
"""

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
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
# First bytes of the files of each format, where they begin, and the usual suffix
BEGINNINGS = (
    (0, b"\xff\xd8\xff", ".jpg"),
    (0, b"\x89PNG", ".png"),
    (8, b"WEBP", ".webp"),
    (0, b"GIF8", ".gif"),
    (0, b"BM", ".bmp"),
    (0, b"II*\0", ".tif"),
    (0, b"MM\0*", ".tif"),
    (0, b"P6", ".ppm"),
    (0, b"P5", ".pgm"),
    (4, b"ftypavi", ".avif"),
    (4, b"jP  ", ".jp2"),
)
HEAD = 12  # bytes that ``suffix_of`` needs
TILE_WIDTH, TILE_HEIGHT, PHOTOMETRIC = 322, 323, 262  # TIFF tags
ORIENTATION = 274  # EXIF tag
VERSION = 5  # raise it whenever the same file would be decoded to other pixels: caches are keyed by it

SMALL = 112  # px; images up to this side count as small: they keep their size, and backbones get another stem
DEFAULT_CROP = 224  # px of the crop if none is given
KEPT = 96  # px up to which squares of one size are kept if no crop is given

LARGE = 2**24  # pixels above which images are decoded one at a time, whatever the number of threads
_one_at_a_time = threading.Lock()


def decode(data: bytes, *, side: int | None = None, least: int | None = None, keep: int = 0) -> NDArray[np.uint8]:
    """Return pixels (height, width, channel) of an image; with ``side``, made a square of that side.

    A square of at most ``keep`` stays as it is.

    One channel if the image is grey, else three. EXIF orientation is applied, transparency becomes white, 16-bit grey
    is scaled to 8 bits, and an animation gives its first frame. A JPEG of more than twice ``side``, or more than twice
    ``least``, is decoded at a fraction of its size. A broken file may raise any exception: PIL's plugins do.
    """
    if not data:
        raise ValueError("empty file")
    image = _opened(data)
    full, wanted = image.size, side or least
    if wanted is not None:
        # A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if that leaves at least twice the wanted side: the filter
        # below still does the last halving, so the result hardly differs.
        image.draft(None, (2 * wanted, 2 * wanted))
    return _pixels(image, full, side, keep)


def _pixels(image: Image.Image, full: tuple[int, int], side: int | None, keep: int) -> NDArray[np.uint8]:
    _check_sizes(image, full)
    with _one_at_a_time if _is_large(image, full) else contextlib.nullcontext():
        image.load()
        with contextlib.suppress(Exception):  # a broken EXIF block is no reason to lose good pixels
            ImageOps.exif_transpose(image, in_place=True)
        image = _flat(image)
        pixels = np.asarray(image)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        height, width = pixels.shape[:2]
        return pixels if side is None or height == width <= keep else square(pixels, side)


def suffix_of(head: bytes) -> str:
    r"""Return the suffix of an image file from its first bytes; empty if they are not known.

    >>> suffix_of(b"\x89PNG\r\n"), suffix_of(b"hello")
    ('.png', '')
    """
    return next((suffix for at, first, suffix in BEGINNINGS if head[at:].startswith(first)), "")


def header_size(data: bytes) -> tuple[int, int]:
    """Return width and height from the file's header, before EXIF orientation."""
    return _opened(data).size


def _opened(data: bytes) -> Image.Image:
    """Read the image's header."""
    try:
        return Image.open(io.BytesIO(data), formats=_formats())
    except UnidentifiedImageError:  # its message is the address of a buffer
        raise ValueError(f"not an image in a format among {', '.join(_formats())}") from None
    except Image.DecompressionBombError:  # its message names another limit than the one below
        raise ValueError(f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels") from None


def _check_sizes(image: Image.Image, full: tuple[int, int]) -> None:
    """Raise ValueError if decoding would take more memory than the largest allowed image, PIL's MAX_IMAGE_PIXELS.

    PIL raises only at twice that and warns below; a filter that turns warnings into errors is shared by all threads,
    so the limit is checked here. It applies to the decoded size: for a JPEG to the fraction, unless it is progressive,
    because then all coefficients are in memory. A TIFF may claim tiles far larger than its image.
    """
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and math.prod(full if "progressive" in image.info else image.size) > limit:
        raise ValueError(f"{full[0]} x {full[1]} pixels, more than {limit:,}")
    tags = getattr(image, "tag_v2", {})
    tile = tags.get(TILE_WIDTH, 0) * tags.get(TILE_HEIGHT, 0)
    if tile > max(LARGE, math.prod(full)):
        raise ValueError(f"tiles of {tile:,} pixels in an image of {math.prod(full):,}")


def _is_large(image: Image.Image, full: tuple[int, int]) -> bool:
    """Whether two such images at once may take too much memory; a JPEG's fraction may hide some of it."""
    return max(math.prod(image.size), math.prod(full) // 4) > LARGE


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress PIL's warnings: one per broken file is too many, and real problems raise errors.

    Use it around a whole set or batch, not around ``decode``: warning filters are shared by all threads.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats this PIL can read. A closed list, because some plugins start other programs (EPS)."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _flat(image: Image.Image) -> Image.Image:
    """Convert to mode L or RGB, transparent pixels on white."""
    if image.mode == "F" or image.mode.startswith("I"):
        return _eight_bits(image)
    grey = image.mode in ("1", "L", "LA")
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if grey else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit grey, or floats from 0 to 1, to mode L. Other ranges have no known white and raise ValueError."""
    values = np.asarray(image)
    top = 1 if image.mode == "F" else 65535
    low, high = values.min(), values.max()
    if not 0 <= low <= high <= top:
        raise ValueError(f"mode {image.mode} with values from {low} to {high}, expected 0 to {top}")
    grey = np.rint(values * (255 / top)).astype(np.uint8)
    if getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == 0:  # white is zero; PIL handles that up to 8 bits
        grey = 255 - grey
    if "transparency" in image.info:
        grey = np.where(values == image.info["transparency"], np.uint8(255), grey)
    return Image.fromarray(grey)


def square(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Make a square: crop the long side to the geometric mean of both sides, and squeeze the rest.

    A panorama of 4:1 keeps its central half, at half its width. Cropping alone loses the ends and squeezing alone
    distorts; benchmarks/aspect.py compares them. Both ends lose the same number of pixels. Bilinear and antialiased, as
    torchvision's Resize; by torch, which takes half of PIL's time and rounds alike.
    """
    height, width = pixels.shape[:2]
    mean = math.sqrt(height * width)
    top, left = (max(0, round((length - mean) / 2)) for length in (height, width))
    part = np.array(pixels[top : height - top, left : width - left])  # a copy: PIL's bytes are read-only
    if part.shape[:2] == (side, side):
        return part
    image = torch.from_numpy(part).unsqueeze(0).permute(0, 3, 1, 2)  # channels-last strides: three times as fast
    resized = F.interpolate(image, (side, side), mode="bilinear", antialias=True, align_corners=False)
    result: NDArray[np.uint8] = resized[0].permute(1, 2, 0).numpy()
    return result


def stored_side(crop: int) -> int:
    """Return the side at which images are stored for a crop: 8/7 of it, as 256 is to 224.

    >>> stored_side(224), stored_side(32)
    (256, 37)
    """
    return round(crop * 8 / 7)


def crop_side(stored: int) -> int:
    """Return the side of the crop for images stored with the margin: 7/8, the inverse of ``stored_side``."""
    return round(stored * 7 / 8)


class StoredSize(NamedTuple):
    """Side and channels of every image of a set, whether they are cached or decoded again at every epoch."""

    side: int
    channels: int
    resized: bool  # False if all images have this side already

    @property
    def nbytes(self) -> int:
        return self.side**2 * self.channels


class SizeLimits(NamedTuple):
    """Which images keep their size, and what the others are resized to."""

    keep: int  # images of one square size up to this are kept as they are
    full: int  # any others are resized to this


def side_limits(size: int | None) -> SizeLimits:
    """Return the limits for a crop of ``size``.

    >>> side_limits(32), side_limits(None)
    (SizeLimits(keep=37, full=37), SizeLimits(keep=96, full=256))
    """
    full = stored_side(DEFAULT_CROP if size is None else size)
    return SizeLimits(KEPT if size is None else full, full)


def decode_alone(data: bytes, limits: SizeLimits) -> NDArray[np.uint8]:
    """Decode an image to the side that it would have in a set of images like it, whatever is next to it."""
    return decode(data, side=limits.full, keep=limits.keep)


def decode_opened(image: Image.Image, limits: SizeLimits | None = None) -> NDArray[np.uint8]:
    """Return the pixels of an image that PIL has opened or made, as ``decode_alone`` does; by default at its own size.

    The image itself stays as it is. It is not decoded at a fraction of its size: a JPEG of more than twice that side
    gives slightly other pixels than its file does.
    """
    with contextlib.suppress(Exception):  # a broken EXIF block, as below
        if image.getexif().get(ORIENTATION, 1) != 1:
            image = ImageOps.exif_transpose(image)
    side, keep = (None, 0) if limits is None else (limits.full, limits.keep)
    return _pixels(image, image.size, side, keep)


def decode_as(data: bytes, shape: StoredSize | None, limits: SizeLimits | None = None) -> NDArray[np.uint8]:
    """Decode an image to the side of ``shape``; a grey one keeps its one channel.

    With ``limits``, an image that does not fit the shape may be decoded at a fraction of its size, because no image is
    stored at more than ``limits.full``.
    """
    if shape is not None and shape.resized:
        return decode(data, side=shape.side)
    return decode(data, least=limits.full if limits is not None else None)


def needed_shape(pixels: NDArray[np.uint8], shape: StoredSize | None, limits: SizeLimits) -> StoredSize:
    """Return the shape that fits this image and all earlier ones, which had ``shape`` (None if it is the first)."""
    height, width, channels = pixels.shape
    if shape is None:
        kept = height == width <= limits.keep
        return StoredSize(height if kept else limits.full, channels, not kept)
    kept = height == width == shape.side and not shape.resized
    return StoredSize(height if kept else limits.full, max(channels, shape.channels), not kept)
