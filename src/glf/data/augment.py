"""Recipes applied to a whole batch of tensors on its device.

All random numbers come from one CPU generator, so a seed gives the same views on every device. Colour operations
clamp after every step, as torchvision's do.
"""

import math

import torch
from jaxtyping import Float, Int, UInt8
from torch import Generator, Tensor
from torch.nn import functional as F

from glf.data.views import View
from glf.types import Batch, Views

Images = Float[Tensor, "batch channel height width"]
PerImage = Float[Tensor, " batch"]


def augment(batch: Batch, recipe: tuple[View, ...], size: int, generator: Generator) -> Views:
    """One augmented batch per view of the recipe, with the boxes that the crops came from."""
    images = batch.images
    drawn = [draw_boxes(view, images.shape[-2], images.shape[-1], len(images), generator) for view in recipe]
    x = tuple(
        recolour_(crop(images, boxes.to(images.device), size), view, generator)
        for view, boxes in zip(recipe, drawn, strict=True)
    )
    return Views(x, torch.stack(drawn).to(images.device), batch.target, batch.row, batch.prior)


def draw_boxes(
    view: View, height: int, width: int, count: int, generator: Generator, tries: int = 10
) -> Float[Tensor, "{count} 4"]:
    """Crops as torchvision's RandomResizedCrop draws them: whole pixels, ten tries, else the largest centred one.

    x0 y0 x1 y1 in fractions of the image; x0 > x1 when the crop is flipped.
    """

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count, tries, generator=generator) * (high - low) + low

    area = height * width * uniform(*view.crop)
    ratio = uniform(math.log(view.ratio[0]), math.log(view.ratio[1])).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w >= 1) & (h >= 1) & (w <= width) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)
    w, h, found = w.gather(1, first)[:, 0], h.gather(1, first)[:, 0], fits.any(1)
    w = torch.where(found, w, min(width, round(height * view.ratio[1])))
    h = torch.where(found, h, min(height, round(width / view.ratio[0])))
    corner = torch.rand(2, count, generator=generator)
    x0 = torch.where(found, (corner[0] * (width - w + 1)).floor(), ((width - w) / 2).floor())
    y0 = torch.where(found, (corner[1] * (height - h + 1)).floor(), ((height - h) / 2).floor())
    flipped = torch.rand(count, generator=generator) < view.flip
    left, right = x0 / width, (x0 + w) / width
    box = (torch.where(flipped, right, left), y0 / height, torch.where(flipped, left, right), (y0 + h) / height)
    return torch.stack(box, 1)


def crop(
    images: UInt8[Tensor, "batch channel height width"], boxes: Float[Tensor, "batch 4"], size: int
) -> Float[Tensor, "batch channel {size} {size}"]:
    """Each image's box, resized bilinearly to a square, in [0, 1]. Pixels outside of the box are never read."""
    height, width = images.shape[-2:]
    x0, y0, x1, y1 = boxes.unbind(1)
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    x = _inside(x0.unsqueeze(1) + (x1 - x0).unsqueeze(1) * steps, x0, x1, width)
    y = _inside(y0.unsqueeze(1) + (y1 - y0).unsqueeze(1) * steps, y0, y1, height)
    x, y = x.unsqueeze(1).expand(-1, size, -1), y.unsqueeze(2).expand(-1, -1, size)
    grid = torch.stack((x, y), dim=-1) * 2 - 1
    return F.grid_sample(images.float() / 255, grid, mode="bilinear", align_corners=False)


def _inside(at: Float[Tensor, "batch size"], a: PerImage, b: PerImage, pixels: int) -> Float[Tensor, "batch size"]:
    low = torch.minimum(a, b) + 0.5 / pixels
    high = torch.maximum(a, b) - 0.5 / pixels
    return torch.minimum(torch.maximum(at, low.unsqueeze(1)), high.unsqueeze(1))


def recolour_(x: Images, view: View, generator: Generator) -> Images:
    """Colour jitter in an order of its own per image, then grey, blur and solarise, written into x."""
    n, colour = len(x), x.shape[1] == 3

    def chosen(probability: float) -> Int[Tensor, " rows"]:
        return (torch.rand(n, generator=generator) < probability).nonzero().flatten()

    jittered = torch.rand(n, generator=generator) < view.jitter
    strength = torch.tensor([view.brightness, view.contrast, view.saturation, view.hue]).unsqueeze(1)
    amount = strength * (torch.rand(4, n, generator=generator) * 2 - 1)
    amount[:3] = (1 + amount[:3]).clamp_min(0)  # three factors about one; the hue's shift is about zero
    order = torch.rand(n, 4, generator=generator).argsort(1)
    operations = [adjust_brightness, adjust_contrast, *([adjust_saturation, adjust_hue] if colour else [])]
    for slot in range(4):
        for kind, operation in enumerate(operations):
            rows = (jittered & (order[:, slot] == kind)).nonzero().flatten()
            x[rows] = operation(x[rows], amount[kind, rows].to(x))
    if colour and view.grey:
        rows = chosen(view.grey)
        x[rows] = luminance(x[rows]).expand(-1, 3, -1, -1)
    if view.blur:
        rows = chosen(view.blur)
        sigma = torch.rand(len(rows), generator=generator) * 1.9 + 0.1
        x[rows] = blur(x[rows], sigma.to(x))
    if view.solarise:
        rows = chosen(view.solarise)
        x[rows] = solarise(x[rows])
    return x


def luminance(x: Images) -> Float[Tensor, "batch 1 height width"]:
    """Grey by the weights of ITU-R 601, as PIL and torchvision have it; a grey image is its own."""
    if x.shape[1] == 1:
        return x
    return (x * x.new_tensor([0.2989, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)


def adjust_brightness(x: Images, factor: PerImage) -> Images:
    """The image times a factor."""
    return _blend(x, torch.zeros_like(x), factor)


def adjust_contrast(x: Images, factor: PerImage) -> Images:
    """Towards or away from the image's mean grey."""
    return _blend(x, luminance(x).mean((1, 2, 3), keepdim=True), factor)


def adjust_saturation(x: Images, factor: PerImage) -> Images:
    """Towards or away from the image's own grey version."""
    return _blend(x, luminance(x), factor)


def _blend(x: Images, other: Tensor, factor: PerImage) -> Images:
    f = factor.view(-1, 1, 1, 1)
    return (f * x + (1 - f) * other).clamp(0, 1)


def adjust_hue(x: Images, shift: PerImage) -> Images:
    """Rotate the hue by a fraction of the full circle, in HSV."""
    value, least = x.amax(1), x.amin(1)
    spread = value - least
    r, g, b = ((value.unsqueeze(1) - x) / spread.clamp_min(1e-12).unsqueeze(1)).unbind(1)
    red, green, _ = (x == value.unsqueeze(1)).unbind(1)
    hue = torch.where(red, b - g, torch.where(green, 2 + r - b, 4 + g - r)) / 6
    hue = torch.where(spread > 0, hue, 0.0) + shift.view(-1, 1, 1)
    # Each channel is a trapezium over the hue circle, shifted by a third: value - spread * clamp(distance).
    offsets = x.new_tensor([5.0, 3.0, 1.0]).view(3, 1, 1)
    k = (offsets + 6 * hue.unsqueeze(1)) % 6
    return value.unsqueeze(1) - spread.unsqueeze(1) * torch.minimum(k, 4 - k).clamp(0, 1)


def blur(x: Images, sigma: PerImage) -> Images:
    """Gaussian blur, each image with its own width: separable, borders reflected, a tenth of the side."""
    n, channels, height, width = x.shape
    if n == 0:  # a batch in which no image was chosen: torch pads and convolves nothing empty
        return x
    radius = max(1, min(height, width) // 20)
    offsets = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    kernel = (-(offsets / sigma.unsqueeze(1)).pow(2) / 2).softmax(1).repeat_interleave(channels, 0)
    flat = F.pad(x.reshape(1, n * channels, height, width), (radius,) * 4, mode="reflect")
    flat = F.conv2d(flat, kernel.view(-1, 1, 1, 2 * radius + 1), groups=n * channels)
    flat = F.conv2d(flat, kernel.view(-1, 1, 2 * radius + 1, 1), groups=n * channels)
    return flat.reshape(x.shape)


def solarise(x: Images, threshold: float = 0.5) -> Images:
    """Invert what is at or above the threshold."""
    return torch.where(x >= threshold, 1 - x, x)
