"""Random boxes; crop, flip, resize and blur, antialiased, in two implementations.

Resizing, flipping and blurring are linear along each axis. ``MatrixCropper`` builds one matrix per image and axis and
processes a batch in two batched matrix products: for GPUs, and for small images, where it is faster than sampling a
grid. ``ByteCropper`` resizes large images on a CPU one by one with torch's uint8 resizing, which rounds to bytes as PIL
does.
"""

import math

import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor
from torch.nn import functional as F

from glf.data.augment.colour import PerImage
from glf.data.augment.policies import ViewPolicy
from glf.device import to_device

BYTE_CROP_SIDE = 64  # side of a view from which a CPU uses ByteCropper (measured: both are equally fast at about 50 px)
ByteImages = UInt8[Tensor, "batch channel height width"]
Boxes = Float[Tensor, "batch 4"]
RowMajor = Float[Tensor, "batch height channel width"]  # the layout in which neither matrix product needs a copy


def draw_boxes(
    view: ViewPolicy, height: int, width: int, count: int, generator: Generator, tries: int = 10
) -> Float[Tensor, "{count} 4"]:
    """Draw crop boxes as torchvision's RandomResizedCrop does: whole pixels, ten tries, then the largest centred box.

    A box is x0 y0 x1 y1 in fractions of the image; x0 > x1 if the crop is flipped.
    """

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count, tries, generator=generator) * (high - low) + low

    area = height * width * uniform(*view.crop_area)
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


def cropper_type(images: ByteImages, size: int) -> "type[MatrixCropper] | type[ByteCropper]":
    """The faster cropper for views of this size."""
    return ByteCropper if images.device.type == "cpu" and size >= BYTE_CROP_SIDE else MatrixCropper


class MatrixCropper:
    """Crops by matrix products; the blur is multiplied into the matrices at almost no cost."""

    def __init__(self, images: ByteImages) -> None:
        self.images = row_major(images)

    def __call__(self, boxes: Boxes, size: int, sigma: PerImage | None = None) -> tuple[Tensor, Tensor]:
        """Square crops in [0, 1], blurred where sigma is positive, and their mean colours before the blur."""
        down, across = crop_matrices(
            to_device(boxes, self.images.device), self.images.shape[1], self.images.shape[3], size
        )
        down /= 255
        mean = mean_colour(self.images, down, across)
        if sigma is not None:
            matrices = blur_matrices(to_device(sigma, self.images.device), size)
            down, across = torch.bmm(matrices, down), torch.bmm(matrices, across)
        return resample(self.images, down, across), mean


class ByteCropper:
    """Crops one image after the other, from bytes to bytes."""

    def __init__(self, images: ByteImages) -> None:
        self.images = images.contiguous(memory_format=torch.channels_last)  # the layout that torch resizes fastest

    def part(self, images: slice) -> "ByteCropper":
        """The cropper of a slice of the batch."""
        return ByteCropper(self.images[images])

    def __call__(self, boxes: Boxes, size: int, sigma: PerImage | None = None) -> tuple[Tensor, Tensor]:
        """Square crops in [0, 1], blurred where sigma is positive, and their mean colours before the blur."""
        height, width = self.images.shape[-2:]
        edges = (boxes * torch.tensor([width, height, width, height])).round().int().tolist()
        crops = []
        for i, (x0, y0, x1, y1) in enumerate(edges):
            box = self.images[i : i + 1, :, y0:y1, min(x0, x1) : max(x0, x1)]
            resized = F.interpolate(box, (size, size), mode="bilinear", antialias=True, align_corners=False)
            crops.append(resized.flip(3) if x0 > x1 else resized)
        x = torch.cat(crops).to(torch.get_default_dtype(), memory_format=torch.contiguous_format).div_(255)
        mean = x.mean((2, 3))
        return (x if sigma is None else blur(x, sigma)), mean


def row_major(images: ByteImages) -> RowMajor:
    """Convert pixels to floats from 0 to 255 in the layout that ``resample`` reads."""
    n, c, h, w = images.shape
    return torch.empty(n, h, c, w, device=images.device).copy_(images.permute(0, 2, 1, 3))


def crop_matrices(
    boxes: Boxes, height: int, width: int, size: int
) -> tuple[Float[Tensor, "batch {size} {height}"], Float[Tensor, "batch {size} {width}"]]:
    """The matrices that resize each image's box to a square: along the height, and along the width."""
    x0, y0, x1, y1 = boxes.unbind(1)
    return resize_matrices(y0, y1, size, height), resize_matrices(x0, x1, size, width)


def resize_matrices(first: PerImage, last: PerImage, size: int, pixels: int) -> Float[Tensor, "batch {size} {pixels}"]:
    r"""Each image's bilinear weights from ``pixels`` to ``size`` along one axis; mirrored where first > last.

    .. math:: W_{ij} \propto \max\left(0, 1 - \frac{|x_j - c_i|}{\max(1, s)}\right)

    with :math:`c_i` the centre of output i, :math:`x_j` the centre of pixel j, and s the number of pixels per output:
    torch's antialiased bilinear filter. Pixels outside of the box have weight 0.
    """
    low, high = torch.minimum(first, last) * pixels, torch.maximum(first, last) * pixels
    steps = (torch.arange(size, device=first.device) + 0.5) / size
    centre = torch.addcmul((first * pixels).unsqueeze(1), ((last - first) * pixels).unsqueeze(1), steps)
    scale = ((high - low) / size).clamp_min(1)
    at = torch.arange(pixels, device=first.device) + 0.5
    # Pixels outside of the box are moved to infinity, so that the distance excludes them.
    outside = (at < low.unsqueeze(1)) | (at > high.unsqueeze(1))
    reach = at.expand(len(first), -1).masked_fill(outside, torch.inf)
    weight = (reach.unsqueeze(1) - centre.unsqueeze(2)).abs_().div_(scale.view(-1, 1, 1)).neg_().add_(1).clamp_min_(0)
    return weight.div_(weight.sum(2, keepdim=True))


def resample(
    images: RowMajor, down: Float[Tensor, "batch size height"], across: Float[Tensor, "batch size width"]
) -> Float[Tensor, "batch channel size size"]:
    """Multiply both axes of every image by their matrices."""
    n, h, c, w = images.shape
    size = down.shape[1]
    columns = torch.bmm(images.reshape(n, h * c, w), across.transpose(1, 2))
    return torch.bmm(down, columns.view(n, h, c * size)).view(n, size, c, size).permute(0, 2, 1, 3)


def mean_colour(
    images: RowMajor, down: Float[Tensor, "batch size height"], across: Float[Tensor, "batch size width"]
) -> Float[Tensor, "batch channel"]:
    """Each channel's mean over the resampled image, without resampling it."""
    columns = (images * across.mean(1)[:, None, None, :]).sum(3)
    return torch.bmm(down.mean(1).unsqueeze(1), columns).squeeze(1)


def blur(x: Float[Tensor, "batch channel height width"], sigma: PerImage) -> Tensor:
    """Blur each image with its own sigma where that is positive: separable convolutions, as ``blur_matrices``.

    Weights beyond five sigma are below a millionth, so smaller sigmas use shorter kernels.
    """
    x = x.contiguous()
    _, channels, height, width = x.shape
    full = _blur_radius(height)
    for low, high, reach in ((0.0, 0.8, 4), (0.8, 1.4, 7), (1.4, math.inf, full)):
        chosen = ((sigma > low) & (sigma <= high)).nonzero().flatten()
        radius = min(full, reach)
        if len(chosen):  # torch cannot pad or convolve an empty batch
            kernel = to_device(_blur_kernels(sigma[chosen], radius).repeat_interleave(channels, 0), x.device)
            chosen = to_device(chosen, x.device)
            flat = F.pad(x[chosen].view(1, -1, height, width), (radius,) * 4, mode="reflect")
            flat = F.conv2d(flat, kernel.view(-1, 1, 1, 2 * radius + 1), groups=len(kernel))
            flat = F.conv2d(flat, kernel.view(-1, 1, 2 * radius + 1, 1), groups=len(kernel))
            x[chosen] = flat.view(-1, channels, height, width)
    return x


def blur_matrices(sigma: PerImage, pixels: int) -> Float[Tensor, "batch {pixels} {pixels}"]:
    """Each image's Gaussian blur along one axis, with reflected borders; the identity where sigma is 0."""
    radius = _blur_radius(pixels)
    eye = torch.eye(pixels, device=sigma.device, dtype=sigma.dtype)
    reflected = F.pad(eye[None], (0, 0, radius, radius), mode="reflect")[0]
    shifted = reflected.unfold(0, pixels, 1).transpose(1, 2)  # (tap, pixel, pixel)
    return (_blur_kernels(sigma, radius) @ shifted.reshape(2 * radius + 1, -1)).view(-1, pixels, pixels)


def _blur_radius(pixels: int) -> int:
    """Half the kernel's width, so that the kernel covers a tenth of the side."""
    return min(max(1, pixels // 20), pixels - 1)


def _blur_kernels(sigma: PerImage, radius: int) -> Float[Tensor, "batch tap"]:
    offsets = torch.arange(-radius, radius + 1, device=sigma.device, dtype=sigma.dtype)
    return (-(offsets / sigma.clamp_min(1e-3).unsqueeze(1)).pow(2) / 2).softmax(1)
