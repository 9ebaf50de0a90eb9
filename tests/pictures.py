"""Real images for the tests of augmentation, and what they are compared with."""

from functools import cache

import torch
from torch import Generator, Tensor

from glf.data.augment.policies import ViewPolicy
from glf.data.batches import to_tensor
from glf.data.sources import load
from glf.types import Batch

COUNT = 4000
# Nothing happens to the colours, and the crop is the whole image; tests turn on what they look at.
PLAIN = ViewPolicy(crop=(1, 1), ratio=(1, 1), flip=0, jitter=0, brightness=0, contrast=0, saturation=0, hue=0, grey=0)


@cache
def stored() -> Tensor:
    return to_tensor(load("fashion-mini").pixels[:100]).contiguous()


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def raw(channels: int = 3, height: int = 28, width: int = 28, count: int = 6) -> Tensor:
    """Real images, uint8; colour ones have three different images as their channels."""
    return stored()[: count * channels].view(count, channels, 28, 28)[:, :, :height, :width].contiguous()


def photos(channels: int = 3) -> Tensor:
    return raw(channels).float() / 255


def batch(images: Tensor) -> Batch:
    n = len(images)
    return Batch(images, torch.arange(n) % 3, torch.arange(n) + 100, torch.randn(n, 5, generator=seeded()))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def in_pixels(boxes: Tensor, height: int, width: int) -> Tensor:
    """left, top, width, height"""
    x0, y0, x1, y1 = (boxes.double() * torch.tensor([width, height, width, height])).unbind(1)
    return torch.stack((torch.minimum(x0, x1), y0, (x1 - x0).abs(), y1 - y0), dim=1)
