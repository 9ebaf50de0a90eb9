"""The images to measure with: real ones where there are any, else the embedded ones made as large as is needed."""

from pathlib import Path

import numpy as np
from PIL import Image

from glf.data import sources
from glf.data.files import find


def small(data: str) -> np.ndarray:
    """(image, 32, 32, 3): CIFAR-10 by name or path; any others, as fashion-mini, are enlarged and coloured."""
    pixels = np.asarray(sources.load(data, "train", progress=False).pixels[:10_000])
    pixels = pixels[np.arange(10_000) % len(pixels)]  # repeated if there are fewer
    if pixels.shape[1:] == (32, 32, 3):
        return pixels
    large = np.stack([np.asarray(Image.fromarray(image[..., 0]).resize((32, 32))) for image in pixels])
    return np.stack([large, np.roll(large, 1, 0), np.roll(large, 2, 0)], -1)  # three images as the three channels


def stored(data: str, folder: Path) -> str:
    """The same as something that ``glf pretrain --data`` takes."""
    pixels = small(data)
    path = folder / "images.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(path, train_images=pixels)
    return str(path)


def photos(source: str | None, folder: Path, count: int = 448) -> Path:
    """A folder of JPEG files: the photos of a folder or a tar, or embedded images at 320 px."""
    folder.mkdir(parents=True, exist_ok=True)
    if source is None:
        for i, image in enumerate(small("fashion-mini")[:count]):
            Image.fromarray(image).resize((320, 320), Image.Resampling.BICUBIC).save(
                folder / f"{i:04d}.jpg", quality=90
            )
        return folder
    from io import BytesIO

    files = find(Path(source), "train")
    for i in range(count):
        entry = files.entries[i % len(files.entries)]
        Image.open(BytesIO(files.read(entry))).convert("RGB").save(folder / f"{i:04d}.jpg", quality=90)
    return folder
