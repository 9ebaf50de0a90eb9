"""Real images for the tests of augmentation, and reference implementations."""

import math
from functools import cache

import numpy as np
import torch
from torch import Generator, Tensor

from glf.data.augment.colour import BRIGHTNESS, CONTRAST, LUMA, SATURATION
from glf.data.augment.policies import ViewPolicy
from glf.data.batches import to_tensor
from glf.data.sources import load_images
from glf.types import Batch

COUNT = 4000
# No change of colours, and the whole image as crop; tests switch on what they examine.
PLAIN = ViewPolicy(
    crop_area=(1, 1), ratio=(1, 1), flip=0, jitter=0, brightness=0, contrast=0, saturation=0, hue=0, grey=0
)


@cache
def stored() -> Tensor:
    return to_tensor(load_images("fashion-mini").pixels[:100]).contiguous()


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def raw(channels: int = 3, height: int = 28, width: int = 28, count: int = 6) -> Tensor:
    """Real uint8 images; colour images have three different images as channels."""
    return stored()[: count * channels].view(count, channels, 28, 28)[:, :, :height, :width].contiguous()


def photos(channels: int = 3) -> Tensor:
    return raw(channels).float() / 255


def batch(images: Tensor) -> Batch:
    n = len(images)
    return Batch(images, torch.arange(n) % 3, torch.arange(n) + 100, torch.randn(n, 5, generator=seeded()))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def in_pixels(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes as left, top, width, height in pixels."""
    x0, y0, x1, y1 = (boxes.double() * torch.tensor([width, height, width, height])).unbind(1)
    return torch.stack((torch.minimum(x0, x1), y0, (x1 - x0).abs(), y1 - y0), dim=1)


def unclamped(image: np.ndarray, amount: list[float], order: list[int], grey: bool) -> np.ndarray:
    """The colour operations by their definitions in float64, without clamping; the hue by Rodrigues' formula."""
    luma = np.array(LUMA if len(image) == 3 else [1.0])
    axis = np.ones(3) / math.sqrt(3)
    for kind in order:
        shade = np.tensordot(luma, image, 1)
        if kind == BRIGHTNESS:
            image = amount[kind] * image
        elif kind == CONTRAST:
            image = amount[kind] * image + (1 - amount[kind]) * shade.mean()
        elif kind == SATURATION:
            image = amount[kind] * image + (1 - amount[kind]) * shade
        elif len(image) == 3:
            angle, pixels = 2 * math.pi * amount[kind], image.reshape(3, -1).T
            turned = (
                pixels * math.cos(angle)
                + np.cross(axis, pixels) * math.sin(angle)
                + np.outer(pixels @ axis, axis) * (1 - math.cos(angle))
            )
            image = turned.T.reshape(image.shape)
    return np.broadcast_to(np.tensordot(luma, image, 1), image.shape) if grey else image
