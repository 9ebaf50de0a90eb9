"""A folder of photos: real images in colour and grey, of several sizes, some rotated by EXIF, some broken."""

from pathlib import Path

import numpy as np
from PIL import Image

from glf.data.sources import load_images

SIZES = [(300, 200), (200, 300), (640, 480), (90, 90), (1500, 1000), (128, 129)]
BROKEN = ("boot/cut.jpg", "coat/empty.png", "coat/text.jpg")


def write_photos(folder: Path, count: int = 24) -> Path:
    """Write ``count`` JPEGs to boot/ and coat/; the three channels are three images of clothes, enlarged."""
    fashion = load_images("fashion-mini", "test").pixels[: 3 * count, :, :, 0]
    for i in range(count):
        path = folder / ("boot", "coat")[i % 2] / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = i % 5 == 3
        pixels = fashion[i] if grey else fashion[i::count].transpose(1, 2, 0)
        image = Image.fromarray(np.ascontiguousarray(pixels)).resize(SIZES[i % len(SIZES)], Image.Resampling.BICUBIC)
        exif = Image.Exif()
        if i % 4 == 1:
            exif[0x0112] = 6  # held upright
        image.save(path, quality=90, exif=exif)
    (folder / "boot" / "cut.jpg").write_bytes((folder / "boot" / "000.jpg").read_bytes()[:1500])
    (folder / "coat" / "empty.png").touch()
    (folder / "coat" / "text.jpg").write_text("this is no photograph")
    return folder
