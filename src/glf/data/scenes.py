"""Scenes: the bundled garments somewhere on a larger, cluttered canvas, as objects are on photos.

Fashion-MNIST shows every garment upright, centred and on black: raw pixels are a strong classifier there. In a scene a
garment has a random place, size, angle and brightness, on a grey ground with pieces of other garments (the idea of
cluttered MNIST), and pixels no longer tell the classes apart.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

SIDE = 36  # px of the canvas
SIZE = (0.8, 1.1)  # range of the garment's size, relative to its own 28 px
ANGLE = 15  # degrees of rotation, at most
BRIGHTNESS = (0.4, 1.0)  # range of the garment's brightness
GROUND = (0.0, 0.3)  # range of the canvas's grey
PIECES, PIECE = 4, 9  # pieces of other garments, and their side in px
INSIDE = 0.85  # of the garment's square stays on the canvas; garments have a margin of their own
VISIBLE = 0.05  # grey from which a pixel belongs to the garment


def scenes(garments: UInt8[np.ndarray, "image height width"], seed: int) -> UInt8[np.ndarray, "image side side 1"]:
    """Return one scene for each garment, fixed by the seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(np.ascontiguousarray(garments)).float().div(255).unsqueeze(1)

    def uniform(low: float, high: float) -> Float[Tensor, " image"]:
        return low + (high - low) * torch.rand(len(x), generator=generator)

    size, angle = uniform(*SIZE) * x.shape[-1] / SIDE, uniform(-ANGLE, ANGLE) * math.pi / 180
    centre = torch.stack((uniform(-1, 1), uniform(-1, 1)), 1) * (1 - INSIDE * size).clamp_min(0).unsqueeze(1)
    both = moved(torch.cat((x, (x > VISIBLE).float()), 1), size, angle, centre)
    garment, mask = both[:, :1], both[:, 1:]
    ground = uniform(*GROUND).view(-1, 1, 1, 1).repeat(1, 1, SIDE, SIDE)
    for _ in range(PIECES):
        add_piece(ground, x, uniform(*BRIGHTNESS), generator)
    found = mask * garment * uniform(*BRIGHTNESS).view(-1, 1, 1, 1) + (1 - mask) * ground
    pixels: np.ndarray = found.clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
    return pixels


def moved(
    x: Float[Tensor, "image channel height width"],
    size: Float[Tensor, " image"],
    angle: Float[Tensor, " image"],
    centre: Float[Tensor, "image 2"],
) -> Float[Tensor, "image channel side side"]:
    """Images on a black canvas: scaled to a share of it, rotated, and moved (the canvas reaches from -1 to 1)."""
    rotation = torch.stack((angle.cos(), angle.sin(), -angle.sin(), angle.cos()), 1).view(-1, 2, 2)
    inverse = rotation / size.view(-1, 1, 1)  # from places on the canvas to places in the image
    grid = F.affine_grid(
        torch.cat((inverse, -inverse @ centre.unsqueeze(2)), 2), [len(x), 1, SIDE, SIDE], align_corners=False
    )
    return F.grid_sample(x, grid, align_corners=False)


def add_piece(
    ground: Float[Tensor, "image 1 height width"],
    garments: Float[Tensor, "image 1 garment_height garment_width"],
    brightness: Float[Tensor, " image"],
    generator: torch.Generator,
) -> None:
    """Put a square piece of another garment at a random place of each canvas, where it is brighter."""
    count, images = len(garments), torch.arange(len(garments)).view(-1, 1, 1)
    down, right = torch.arange(PIECE).view(-1, 1), torch.arange(PIECE)

    def cells(side: int) -> tuple[Tensor, Tensor]:
        top, left = torch.randint(side - PIECE + 1, (2, count, 1, 1), generator=generator)
        return top + down, left + right

    others = torch.randint(count, (count, 1, 1), generator=generator)
    (from_y, from_x), (to_y, to_x) = cells(garments.shape[-1]), cells(SIDE)
    piece = garments[others, 0, from_y, from_x] * brightness.view(-1, 1, 1)
    ground[images, 0, to_y, to_x] = torch.maximum(ground[images, 0, to_y, to_x], piece)
