"""Where a view looks, and how it is cut out: boxes, and two ways to crop, flip and resize, antialiased.

Resizing, flipping and blurring are linear along each axis, so each image gets one matrix per axis, and a whole batch
is two batched matrix products: the way of GPUs and of small images, where it is faster than sampling a grid. Large
images on a CPU go one by one through torch's resizing of bytes, which rounds to whole bytes as PIL does.
"""

import math

import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor
from torch.nn import functional as F

from glf.data.augment.policies import ViewPolicy
from glf.device import to_device

ONE_BY_ONE = 64  # side of a view from which on a CPU cuts images one by one
Pixels = UInt8[Tensor, "batch channel height width"]
Boxes = Float[Tensor, "batch 4"]
PerImage = Float[Tensor, " batch"]
Rows = Float[Tensor, "batch height channel width"]  # the layout in which both products need no copy


def draw_boxes(
    view: ViewPolicy, height: int, width: int, count: int, generator: Generator, tries: int = 10
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


def way(images: Pixels, size: int) -> "type[Products] | type[OneByOne]":
    """The faster way to cut views of this size out of these images (measured: they cross at some 50 px)."""
    return OneByOne if images.device.type == "cpu" and size >= ONE_BY_ONE else Products


class Products:
    """Cuts by matrix products, the blur included at hardly any cost."""

    def __init__(self, images: Pixels) -> None:
        self.rows = as_rows(images)

    def __call__(self, boxes: Boxes, size: int, sigma: PerImage | None = None) -> tuple[Tensor, Tensor]:
        """Squares in [0, 1], blurred where sigma is positive, and the mean colour that they had before the blur."""
        down, across = axes(to_device(boxes, self.rows.device), self.rows.shape[1], self.rows.shape[3], size)
        down /= 255
        mean = mean_colour(self.rows, down, across)
        if sigma is not None:
            blur = blurring(to_device(sigma, self.rows.device), size)
            down, across = torch.bmm(blur, down), torch.bmm(blur, across)
        return resample(self.rows, down, across), mean


class OneByOne:
    """Cuts one image after the other, from bytes to bytes."""

    def __init__(self, images: Pixels) -> None:
        self.images = images.contiguous(memory_format=torch.channels_last)  # what torch has a fast way for

    def part(self, rows: slice) -> "OneByOne":
        """The same for some of the images."""
        return OneByOne(self.images[rows])

    def __call__(self, boxes: Boxes, size: int, sigma: PerImage | None = None) -> tuple[Tensor, Tensor]:
        """As above."""
        height, width = self.images.shape[-2:]
        edges = (boxes * torch.tensor([width, height, width, height])).round().int().tolist()
        cut = []
        for i, (x0, y0, x1, y1) in enumerate(edges):
            box = self.images[i : i + 1, :, y0:y1, min(x0, x1) : max(x0, x1)]
            resized = F.interpolate(box, (size, size), mode="bilinear", antialias=True, align_corners=False)
            cut.append(resized.flip(3) if x0 > x1 else resized)
        x = torch.cat(cut).to(torch.get_default_dtype(), memory_format=torch.contiguous_format).div_(255)
        mean = x.mean((2, 3))
        return (x if sigma is None else blurred(x, sigma)), mean


def blurred(x: Float[Tensor, "batch channel height width"], sigma: PerImage) -> Tensor:
    """Each image blurred with its own width, where that is positive: separable, the same kernel as ``blurring``.

    What is further away than five widths counts for less than a millionth: narrow blurs go by shorter kernels.
    """
    x = x.contiguous()
    _, channels, height, width = x.shape
    full = _radius(height)
    for low, high, reach in ((0.0, 0.8, 4), (0.8, 1.4, 7), (1.4, math.inf, full)):
        rows = ((sigma > low) & (sigma <= high)).nonzero().flatten()
        radius = min(full, reach)
        if len(rows):  # torch pads and convolves nothing empty
            kernel = to_device(_kernels(sigma[rows], radius).repeat_interleave(channels, 0), x.device)
            rows = to_device(rows, x.device)
            flat = F.pad(x[rows].view(1, -1, height, width), (radius,) * 4, mode="reflect")
            flat = F.conv2d(flat, kernel.view(-1, 1, 1, 2 * radius + 1), groups=len(kernel))
            flat = F.conv2d(flat, kernel.view(-1, 1, 2 * radius + 1, 1), groups=len(kernel))
            x[rows] = flat.view(-1, channels, height, width)
    return x


def as_rows(images: Pixels) -> Rows:
    """Pixels as floats from 0 to 255, in the layout that ``resample`` reads."""
    n, c, h, w = images.shape
    return torch.empty(n, h, c, w, device=images.device).copy_(images.permute(0, 2, 1, 3))


def axes(
    boxes: Boxes, height: int, width: int, size: int
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
    radius = _radius(pixels)
    eye = torch.eye(pixels, device=sigma.device, dtype=sigma.dtype)
    reflected = F.pad(eye[None], (0, 0, radius, radius), mode="reflect")[0]
    shifted = reflected.unfold(0, pixels, 1).transpose(1, 2)  # (tap, pixel, pixel)
    return (_kernels(sigma, radius) @ shifted.reshape(2 * radius + 1, -1)).view(-1, pixels, pixels)


def _radius(pixels: int) -> int:
    return min(max(1, pixels // 20), pixels - 1)


def _kernels(sigma: PerImage, radius: int) -> Float[Tensor, "batch tap"]:
    offsets = torch.arange(-radius, radius + 1, device=sigma.device, dtype=sigma.dtype)
    return (-(offsets / sigma.clamp_min(1e-3).unsqueeze(1)).pow(2) / 2).softmax(1)


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
