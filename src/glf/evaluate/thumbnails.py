"""Many small pictures in one file: a sheet of tiles, row by row."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from glf.atomic import whole

QUALITY = 75  # of WebP: a thumbnail's faults are smaller than what scaling it down has cost


def write_sheet(path: Path, pictures: Iterable[UInt8[np.ndarray, "_ _ _"]], side: int) -> dict[str, int]:
    """A WebP of square tiles, none larger than its picture; returns how many there are, in how many columns."""
    found = list(pictures)
    side = min(side, max(found[0].shape[:2]))
    tiles = [thumbnail(picture, side) for picture in found]
    columns = math.ceil(math.sqrt(len(tiles)))
    sheet = Image.new("RGB", (columns * side, math.ceil(len(tiles) / columns) * side))
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (place % columns * side, place // columns * side))
    with whole(path) as partial:
        sheet.save(partial, "WEBP", quality=QUALITY, method=6)
    return {"count": len(tiles), "columns": columns, "side": side}


def thumbnail(picture: UInt8[np.ndarray, "height width channel"], side: int) -> Image.Image:
    """The whole picture as a square."""
    image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
    return image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
