"""Apply an augmentation policy to a whole batch on its device.

All random numbers come from one CPU generator, so a seed gives the same views on every device. The drawn parameters are
small and are copied to the device; nothing is copied back, so a step never waits for the device.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from glf.config.training import Colour
from glf.data.augment import colour, resampling
from glf.data.augment.policies import BLUR_SIGMA, ViewPolicy
from glf.device import to_device
from glf.types import Batch, Views

Cropper = resampling.MatrixCropper | resampling.ByteCropper


class ViewParameters(NamedTuple):
    """The random parameters of one view, one entry per image, on the CPU."""

    boxes: Float[Tensor, "batch 4"]
    amount: Float[Tensor, "batch 4"]  # factors of brightness, contrast and saturation; shift of the hue
    order: Int[Tensor, "batch 4"]  # in which those four are applied
    grey: Bool[Tensor, " batch"]
    sigma: Float[Tensor, " batch"] | None  # of the blur in pixels, 0 for no blur; None if the policy has no blur
    solarised: Bool[Tensor, " batch"]

    def part(self, images: slice) -> "ViewParameters":
        """The parameters of a slice of the batch."""
        values: list[Any] = [None if value is None else value[images] for value in self]
        return ViewParameters(*values)


def augment(
    batch: Batch,
    policy: tuple[ViewPolicy, ...],
    size: int,
    generator: Generator,
    colours: Colour = "fused",
    *,
    rank: int = 0,
    world: int = 1,
) -> Views:
    """Return one augmented batch per view of the policy, with the boxes of the crops.

    Each process draws parameters for the global batch and uses those of its own images, so that views do not depend on
    the number of processes.
    """
    images = batch.images
    height, width = images.shape[-2:]
    count = len(images)
    own = slice(rank * count, (rank + 1) * count)
    # Without autocast: half precision is meant for the network and would lose half of the digits of a colour.
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        parameters = [draw_view(view, height, width, count * world, generator).part(own) for view in policy]
        sides = [max(1, round(view.side * size)) for view in policy]
        kinds = [resampling.cropper_type(images, side) for side in sides]
        croppers = {kind: kind(images) for kind in set(kinds)}
        make = fused if colours == "fused" else exact
        x = tuple(
            _make_view(make, croppers[kind], drawn, side)
            for kind, drawn, side in zip(kinds, parameters, sides, strict=True)
        )
        boxes = to_device(torch.stack([drawn.boxes for drawn in parameters]), images.device)
    return Views(x, boxes, batch.target, batch.indices, batch.prior)


def draw_view(view: ViewPolicy, height: int, width: int, count: int, generator: Generator) -> ViewParameters:
    """Draw the parameters of one view of ``count`` images."""

    def happens(probability: float) -> Tensor:
        return torch.rand(count, generator=generator) < probability

    boxes = resampling.draw_boxes(view, height, width, count, generator)
    amount, order = colour.draw_jitter(view, count, generator)
    grey, blurred = happens(view.grey), happens(view.blur)
    low, high = BLUR_SIGMA
    sigma = torch.where(blurred, torch.rand(count, generator=generator) * (high - low) + low, 0.0)
    return ViewParameters(boxes, amount, order, grey, sigma if view.blur else None, happens(view.solarise))


def _make_view(
    make: Callable[[Cropper, ViewParameters, int], Tensor], cropper: Cropper, drawn: ViewParameters, size: int
) -> Tensor:
    """One view of the batch: by batched operations, or image by image in threads."""
    if isinstance(cropper, resampling.MatrixCropper):
        return make(cropper, drawn, size)
    out = torch.empty(*cropper.images.shape[:2], size, size)
    return map_in_threads(lambda part: make(cropper.part(part), drawn.part(part), size), out)


def exact(cropper: Cropper, drawn: ViewParameters, size: int) -> Float[Tensor, "batch channel {size} {size}"]:
    """Crop, flip, jitter, grey, blur, solarise one after the other; colours are clamped after each operation."""
    x, _ = cropper(drawn.boxes, size)
    if isinstance(cropper, resampling.ByteCropper):
        for image, *numbers in zip(x, drawn.amount.tolist(), drawn.order.tolist(), drawn.grey.tolist(), strict=True):
            colour.recolour_one_(image, *numbers)
    else:
        x = colour.recolour(x.contiguous(), drawn.amount, drawn.order, drawn.grey)
    blurred = x if drawn.sigma is None else resampling.blur(x, drawn.sigma)
    return _solarise(blurred.clamp_(0, 1), drawn)  # hue, grey and blur may exceed 1 by a rounding


def fused(cropper: Cropper, drawn: ViewParameters, size: int) -> Float[Tensor, "batch channel {size} {size}"]:
    """The same with all linear operations multiplied into one matrix per image; clamped once, then solarised.

    The blur is linear too and may be applied before the colours, except for the mean colour that contrast blends with.
    """
    x, mean = cropper(drawn.boxes, size, drawn.sigma)
    a, b = colour.fused_matrices(drawn.amount, drawn.order, drawn.grey, x.shape[1])
    matrices = to_device(torch.stack((a, b)), x.device)
    flat = torch.bmm(matrices[0], x.flatten(2)).add_(torch.bmm(matrices[1], mean.unsqueeze(2))).clamp_(0, 1)
    return _solarise(flat.view(*flat.shape[:2], size, size), drawn)


def _solarise(x: colour.Images, drawn: ViewParameters) -> colour.Images:
    chosen = to_device(drawn.solarised.nonzero().flatten(), x.device)
    x[chosen] = colour.solarise(x[chosen])
    return x


def map_in_threads(function: Callable[[slice], Tensor], out: Tensor) -> Tensor:
    """Fill ``out`` in as many slices as torch has threads, each in a thread of its own with single-threaded operations.

    Operations on a single image are too short to be split among threads: synchronising would take longer than the work,
    even more so while loader workers use the cores.
    """
    threads = torch.get_num_threads()

    def fill(part: slice) -> None:
        out[part] = function(part)

    ends = [len(out) * i // threads for i in range(threads + 1)]
    parts = [slice(start, end) for start, end in pairwise(ends) if start < end]
    if len(parts) < 2:
        for part in parts:
            fill(part)
        return out
    torch.set_num_threads(1)  # applies to all threads of this process
    try:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(fill, parts))
    finally:
        torch.set_num_threads(threads)
    return out
