"""Images for the measurements: the given ones, or the bundled ones, enlarged."""

from pathlib import Path

import numpy as np
from PIL import Image

from glf.data import sources
from glf.data.files import list_files


def small(data: str) -> np.ndarray:
    """Pixels of shape (image, 32, 32, 3); other images, such as those of fashion-mini, are resized and coloured."""
    pixels = np.asarray(sources.load_images(data, "train", progress=False).pixels[:10_000])
    pixels = pixels[np.arange(10_000) % len(pixels)]  # repeat if there are fewer
    if pixels.shape[1:] == (32, 32, 3):
        return pixels
    large = np.stack([np.asarray(Image.fromarray(image[..., 0]).resize((32, 32))) for image in pixels])
    return np.stack([large, np.roll(large, 1, 0), np.roll(large, 2, 0)], -1)  # three images become the three channels


def stored(data: str, folder: Path) -> str:
    """Write these images to a file for ``glf pretrain --data``; return its path."""
    pixels = small(data)
    path = folder / "images.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, train_images=pixels)
    return str(path)


def photos(source: str | None, folder: Path, count: int = 448) -> Path:
    """Write a folder of JPEG files: the given photos, or bundled images at 320 px."""
    folder.mkdir(parents=True, exist_ok=True)
    if source is None:
        for i, image in enumerate(small("fashion-mini")[:count]):
            Image.fromarray(image).resize((320, 320), Image.Resampling.BICUBIC).save(
                folder / f"{i:04d}.jpg", quality=90
            )
        return folder
    from io import BytesIO

    files = list_files(Path(source), "train")
    for i in range(count):
        Image.open(BytesIO(files.read(i % len(files)))).convert("RGB").save(folder / f"{i:04d}.jpg", quality=90)
    return folder
