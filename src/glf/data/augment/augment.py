"""Parts of a batch side by side, each in a thread of its own."""
# MERGED DOCS:
# | """Recipes applied to a whole batch of tensors on its device.
# |
# | All random numbers come from one CPU generator, so a seed gives the same views on every device. What is drawn is small
# | and moves to the device; nothing comes back from it, so the step never waits.
# | """

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from glf.config.training import Colour
from glf.data.augment import colour, crop
from glf.data.augment.policies import ViewPolicy
from glf.device import to_device
from glf.types import Batch, Views


def map_in_threads(function: Callable[[slice], Tensor], out: Tensor) -> Tensor:
    """Fill ``out`` by parts, as many as torch has threads; every operation inside of a part has one.

    Operations on a single image are too short to be shared by threads: waiting for each other takes them more time
    than the work, and all the more so while loader workers keep the cores busy.
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
    torch.set_num_threads(1)  # for all threads of this process
    try:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(fill, parts))
    finally:
        torch.set_num_threads(threads)
    return out


class Drawn(NamedTuple):
    """Everything random in one view of a batch, an entry per image, on the CPU."""

    boxes: Float[Tensor, "batch 4"]
    amount: Float[Tensor, "batch 4"]  # brightness, contrast, saturation: factors; hue: a shift
    order: Int[Tensor, "batch 4"]  # in which those four apply
    grey: Bool[Tensor, " batch"]
    sigma: Float[Tensor, " batch"] | None  # of the blur in pixels, 0 where there is none; None if never
    solarised: Bool[Tensor, " batch"]

    def part(self, rows: slice) -> "Drawn":
        """The same of some images."""
        values: list[Any] = [None if value is None else value[rows] for value in self]
        return Drawn(*values)


def augment(
    batch: Batch,
    recipe: tuple[ViewPolicy, ...],
    size: int,
    generator: Generator,
    colours: Colour = "fused",
    *,
    rank: int = 0,
    world: int = 1,
) -> Views:
    """One augmented batch per view of the recipe, with the boxes that the crops came from.

    Of several processes each draws for the images of all, and takes its own: views do not depend on how many share a
    batch.
    """
    images = batch.images
    height, width = images.shape[-2:]
    count = len(images)
    own = slice(rank * count, (rank + 1) * count)
    # Mixed precision is for the network: half of the digits of a colour would be gone before it sees them.
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        drawn = [draw_view(view, height, width, count * world, generator).part(own) for view in recipe]
        sides = [max(1, round(view.side * size)) for view in recipe]
        ways = [crop.way(images, side) for side in sides]
        whole = {way: way(images) for way in set(ways)}
        cut = [whole[way] for way in ways]
        make = fused if colours == "fused" else exact
        x = tuple(_made(make, *one) for one in zip(cut, drawn, sides, strict=True))
        boxes = to_device(torch.stack([one.boxes for one in drawn]), images.device)
    return Views(x, boxes, batch.target, batch.indices, batch.prior)


def draw_view(view: ViewPolicy, height: int, width: int, count: int, generator: Generator) -> Drawn:
    """The random numbers of one view."""

    def happens(probability: float) -> Tensor:
        return torch.rand(count, generator=generator) < probability

    boxes = crop.draw_boxes(view, height, width, count, generator)
    amount, order = colour.draw_jitter(view, count, generator)
    grey, blurred = happens(view.grey), happens(view.blur)
    sigma = torch.where(blurred, torch.rand(count, generator=generator) * 1.9 + 0.1, 0.0)
    return Drawn(boxes, amount, order, grey, sigma if view.blur else None, happens(view.solarise))


Cutter = crop.Products | crop.OneByOne


def _made(make: Callable[[Cutter, Drawn, int], Tensor], cut: Cutter, drawn: Drawn, size: int) -> Tensor:
    """A view of the whole batch: by operations on all of it, or image by image in threads."""
    if isinstance(cut, crop.Products):
        return make(cut, drawn, size)
    out = torch.empty(*cut.images.shape[:2], size, size)
    return map_in_threads(lambda rows: make(cut.part(rows), drawn.part(rows), size), out)


def exact(cut: Cutter, drawn: Drawn, size: int) -> Float[Tensor, "batch channel {size} {size}"]:
    """Crop, flip, jitter, grey, blur, solarise: one after the other, colours clamped after each operation."""
    x, _ = cut(drawn.boxes, size)
    if isinstance(cut, crop.OneByOne):
        for image, *numbers in zip(x, drawn.amount.tolist(), drawn.order.tolist(), drawn.grey.tolist(), strict=True):
            colour.recolour_one_(image, *numbers)
    else:
        x = colour.recolour(x.contiguous(), drawn.amount, drawn.order, drawn.grey)
    return _solarised(x if drawn.sigma is None else crop.blurred(x, drawn.sigma), drawn)


def fused(cut: Cutter, drawn: Drawn, size: int) -> Float[Tensor, "batch channel {size} {size}"]:
    """The same, with everything that is linear multiplied together beforehand; clamped once, then solarised.

    The blur is linear too, so it may come before the colours: all but the mean, which contrast blends with.
    """
    x, mean = cut(drawn.boxes, size, drawn.sigma)
    a, b = colour.fused_matrices(drawn.amount, drawn.order, drawn.grey, x.shape[1])
    matrices = to_device(torch.stack((a, b)), x.device)
    flat = torch.bmm(matrices[0], x.flatten(2)).add_(torch.bmm(matrices[1], mean.unsqueeze(2))).clamp_(0, 1)
    return _solarised(flat.view(*flat.shape[:2], size, size), drawn)


def _solarised(x: colour.Images, drawn: Drawn) -> colour.Images:
    chosen = to_device(drawn.solarised.nonzero().flatten(), x.device)
    x[chosen] = colour.solarise(x[chosen])
    return x
