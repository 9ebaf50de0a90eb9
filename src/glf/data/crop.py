"""Where a view looks, and how it is resampled: boxes, and the matrices that crop, flip, resize and blur.

Resizing, flipping and blurring are linear along each axis, so each image gets one matrix per axis and a whole batch
is two batched matrix products. This is faster than sampling a grid, on the CPU as well, and it is antialiased.
"""

import math

import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor
from torch.nn import functional as F

from glf.data.views import View

PerImage = Float[Tensor, " batch"]
Rows = Float[Tensor, "batch height channel width"]  # the layout in which both products need no copy


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


def as_rows(images: UInt8[Tensor, "batch channel height width"]) -> Rows:
    """Pixels as floats from 0 to 255, in the layout that ``resample`` reads."""
    n, c, h, w = images.shape
    return torch.empty(n, h, c, w, device=images.device).copy_(images.permute(0, 2, 1, 3))


def axes(
    boxes: Float[Tensor, "batch 4"], height: int, width: int, size: int
) -> tuple[Float[Tensor, "batch {size} {height}"], Float[Tensor, "batch {size} {width}"]]:
    """The matrices that bring each image's box to a square: down the rows, and across the columns."""
    x0, y0, x1, y1 = boxes.unbind(1)
    return resampling(y0, y1, size, height), resampling(x0, x1, size, width)


def resampling(first: PerImage, last: PerImage, size: int, pixels: int) -> Float[Tensor, "batch {size} {pixels}"]:
    r"""Each image's bilinear weights from ``pixels`` to ``size`` along one axis; mirrored where first > last.

    .. math:: W_{ij} \propto \max\left(0, 1 - \frac{|x_j - c_i|}{\max(1, s)}\right)

    with :math:`c_i` the centre of the i-th output, :math:`x_j` that of the j-th pixel and s how many pixels an output
    covers: torch's antialiased bilinear filter. Pixels outside of the box are never read.
    """
    low, high = torch.minimum(first, last) * pixels, torch.maximum(first, last) * pixels
    steps = (torch.arange(size, device=first.device) + 0.5) / size
    centre = torch.addcmul((first * pixels).unsqueeze(1), ((last - first) * pixels).unsqueeze(1), steps)
    scale = ((high - low) / size).clamp_min(1)
    at = torch.arange(pixels, device=first.device) + 0.5
    # The inside of the box joins the distance: a pixel outside is infinitely far.
    outside = (at < low.unsqueeze(1)) | (at > high.unsqueeze(1))
    reach = at.expand(len(first), -1).masked_fill(outside, torch.inf)
    weight = (reach.unsqueeze(1) - centre.unsqueeze(2)).abs_().div_(scale.view(-1, 1, 1)).neg_().add_(1).clamp_min_(0)
    return weight.div_(weight.sum(2, keepdim=True))


def blurring(sigma: PerImage, pixels: int) -> Float[Tensor, "batch {pixels} {pixels}"]:
    """Each image's Gaussian blur along one axis: borders reflected, a tenth of the side wide; sigma 0 does nothing."""
    radius = max(1, pixels // 20)
    offsets = torch.arange(-radius, radius + 1, device=sigma.device, dtype=sigma.dtype)
    kernel = (-(offsets / sigma.clamp_min(1e-3).unsqueeze(1)).pow(2) / 2).softmax(1)
    reflected = F.pad(
        torch.eye(pixels, device=sigma.device, dtype=sigma.dtype)[None], (0, 0, radius, radius), "reflect"
    )
    shifted = reflected[0].unfold(0, pixels, 1).transpose(1, 2)  # (tap, pixel, pixel)
    return (kernel @ shifted.reshape(2 * radius + 1, -1)).view(-1, pixels, pixels)


def resample(
    rows: Rows, down: Float[Tensor, "batch size height"], across: Float[Tensor, "batch size width"]
) -> Float[Tensor, "batch channel size size"]:
    """Both axes of every image multiplied by their matrices."""
    n, h, c, w = rows.shape
    size = down.shape[1]
    columns = torch.bmm(rows.reshape(n, h * c, w), across.transpose(1, 2))
    return torch.bmm(down, columns.view(n, h, c * size)).view(n, size, c, size).permute(0, 2, 1, 3)


def mean_colour(
    rows: Rows, down: Float[Tensor, "batch size height"], across: Float[Tensor, "batch size width"]
) -> Float[Tensor, "batch channel"]:
    """Each channel's mean over the resampled image, without resampling it."""
    columns = (rows * across.mean(1)[:, None, None, :]).sum(3)
    return torch.bmm(down.mean(1).unsqueeze(1), columns).squeeze(1)
