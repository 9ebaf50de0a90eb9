"""Recipes applied to a whole batch of tensors on its device.

All random numbers come from one CPU generator, so a seed gives the same views on every device. What is drawn is small
and moves to the device; nothing comes back from it, so the step never waits.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from glf.config import Colour
from glf.data import colour, crop
from glf.data.views import View
from glf.types import Batch, Views


class Drawn(NamedTuple):
    """Everything random in one view of a batch, an entry per image, on the CPU."""

    boxes: Float[Tensor, "batch 4"]
    amount: Float[Tensor, "batch 4"]  # brightness, contrast, saturation: factors; hue: a shift
    order: Int[Tensor, "batch 4"]  # in which those four apply
    grey: Bool[Tensor, " batch"]
    sigma: Float[Tensor, " batch"] | None  # of the blur in pixels, 0 where there is none; None if never
    solarised: Bool[Tensor, " batch"]


def augment(
    batch: Batch, recipe: tuple[View, ...], size: int, generator: Generator, colours: Colour = "fused"
) -> Views:
    """One augmented batch per view of the recipe, with the boxes that the crops came from."""
    height, width = batch.images.shape[-2:]
    # Mixed precision is for the network: half of the digits of a colour would be gone before it sees them.
    with torch.no_grad(), torch.autocast(batch.images.device.type, enabled=False):
        rows = crop.as_rows(batch.images)
        drawn = [draw(view, height, width, len(rows), generator) for view in recipe]
        sides = [max(1, round(view.side * size)) for view in recipe]
        make = fused if colours == "fused" else exact
        x = tuple(make(rows, one, side) for one, side in zip(drawn, sides, strict=True))
        boxes = torch.stack([one.boxes for one in drawn]).to(rows.device, non_blocking=True)
    return Views(x, boxes, batch.target, batch.row, batch.prior)


def draw(view: View, height: int, width: int, count: int, generator: Generator) -> Drawn:
    """The random numbers of one view."""

    def happens(probability: float) -> Tensor:
        return torch.rand(count, generator=generator) < probability

    boxes = crop.draw_boxes(view, height, width, count, generator)
    amount, order = colour.draw_jitter(view, count, generator)
    grey, blurred = happens(view.grey), happens(view.blur)
    sigma = torch.where(blurred, torch.rand(count, generator=generator) * 1.9 + 0.1, 0.0)
    return Drawn(boxes, amount, order, grey, sigma if view.blur else None, happens(view.solarise))


def exact(rows: crop.Rows, drawn: Drawn, size: int) -> Float[Tensor, "batch channel {size} {size}"]:
    """Crop, flip, jitter, grey, blur, solarise: one after the other, colours clamped after each operation."""
    down, across = _axes(rows, drawn, size)
    x = crop.resample(rows, down, across).contiguous()
    x = colour.recolour(x, drawn.amount, drawn.order, drawn.grey)
    if drawn.sigma is not None:
        blurred = drawn.sigma.nonzero().flatten()
        matrix = crop.blurring(drawn.sigma[blurred].to(x.device), size)
        blurred = blurred.to(x.device)
        x[blurred] = crop.resample(x[blurred].permute(0, 2, 1, 3), matrix, matrix)
    return _solarised(x, drawn)


def fused(rows: crop.Rows, drawn: Drawn, size: int) -> Float[Tensor, "batch channel {size} {size}"]:
    """The same, with everything that is linear multiplied together beforehand; clamped once, then solarised."""
    down, across = _axes(rows, drawn, size)
    mean = crop.mean_colour(rows, down, across)  # before the blur, which comes after the colours
    if drawn.sigma is not None:
        blur = crop.blurring(drawn.sigma.to(rows.device, non_blocking=True), size)
        down, across = torch.bmm(blur, down), torch.bmm(blur, across)
    a, b = colour.fused_matrices(drawn.amount, drawn.order, drawn.grey, rows.shape[2])
    matrices = torch.stack((a, b)).to(rows.device, non_blocking=True)
    x = crop.resample(rows, down, across).flatten(2)
    x = torch.baddbmm(torch.bmm(matrices[1], mean.unsqueeze(2)), matrices[0], x).clamp_(0, 1)
    return _solarised(x.view(*x.shape[:2], size, size), drawn)


def _axes(rows: crop.Rows, drawn: Drawn, size: int) -> tuple[Tensor, Tensor]:
    """Matrices from stored bytes to a square in [0, 1]."""
    down, across = crop.axes(drawn.boxes.to(rows.device, non_blocking=True), rows.shape[1], rows.shape[3], size)
    return down / 255, across


def _solarised(x: colour.Images, drawn: Drawn) -> colour.Images:
    chosen = drawn.solarised.nonzero().flatten().to(x.device)
    x[chosen] = colour.solarise(x[chosen])
    return x
