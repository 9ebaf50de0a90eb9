"""Colour operations on a batch, with parameters of their own for each image, in two forms.

Brightness, contrast, saturation and grey are affine in an image's colours. The exact form applies them one after the
other and clamps after each, as torchvision does. The fused form multiplies them into one matrix per image and clamps
once; it rotates the hue about the grey axis, whereas torchvision converts to HSV.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from glf.data.augment.policies import ViewPolicy
from glf.device import to_device

Images = Float[Tensor, "batch channel height width"]
PerImage = Float[Tensor, " batch"]
JitterMatrices = Float[Tensor, "batch 4 channel channel"]
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
LUMA = (0.2989, 0.587, 0.114)  # ITU-R 601, with the digits of PIL and torchvision


def draw_jitter(
    view: ViewPolicy, count: int, generator: Generator
) -> tuple[Float[Tensor, "{count} 4"], Int[Tensor, "{count} 4"]]:
    """Draw each image's factors of brightness, contrast and saturation, its hue shift, and the order of the four.

    Images that are not jittered get the neutral values 1, 1, 1 and 0.
    """
    strengths = (view.brightness, view.contrast, view.saturation)
    low = torch.tensor([*(max(0.0, 1 - strength) for strength in strengths), -float(view.hue)])
    high = torch.tensor([*(1.0 + strength for strength in strengths), float(view.hue)])
    jittered = torch.rand(count, 1, generator=generator) < view.jitter
    amount = torch.lerp(low, high, torch.rand(count, 4, generator=generator))
    order = torch.rand(count, 4, generator=generator).argsort(1)
    return torch.where(jittered, amount, torch.tensor([1.0, 1.0, 1.0, 0.0])), order


def jitter_matrices(
    amount: Float[Tensor, "batch 4"], order: Int[Tensor, "batch 4"], channels: int, *, hue: bool
) -> tuple[JitterMatrices, JitterMatrices]:
    """The four operations as matrices in the order of application: those for a colour, those for the mean colour.

    They differ for contrast only: it scales a colour and adds the image's mean grey, so it desaturates the mean. The
    hue is a rotation, or the identity with ``hue=False``.
    """
    factor = torch.cat((amount[:, :3], torch.ones(len(amount), 1)), 1)
    shade = 1 - factor
    own, mean = shade.clone(), shade
    own[:, (BRIGHTNESS, CONTRAST)] = 0
    mean[:, BRIGHTNESS] = 0
    both = torch.stack((own, mean))[..., None, None] * _greys(channels)
    both += factor[..., None, None] * torch.eye(channels)
    if hue and channels == 3:
        both[:, :, HUE] = hue_rotation(amount[:, HUE])
    both = both[:, torch.arange(len(order)).unsqueeze(1), order]
    return both[0], both[1]


def recolour(
    x: Images, amount: Float[Tensor, "batch 4"], order: Int[Tensor, "batch 4"], grey: Bool[Tensor, " batch"]
) -> Images:
    """The exact form: each image's operations in its own order, clamped after each; then grey."""
    own, mean = jitter_matrices(amount, order, x.shape[1], hue=False)
    own, filled = (to_device(m.transpose(0, 1).contiguous(), x.device) for m in (own, mean - own))
    for slot in range(4):
        flat = x.flatten(2)
        offset = torch.bmm(filled[slot], flat.mean(2, keepdim=True))
        x = torch.bmm(own[slot], flat).add_(offset).clamp_(0, 1).view(x.shape)
        shifted = ((order[:, slot] == HUE) & (amount[:, HUE] != 0)).nonzero().flatten()
        if x.shape[1] == 3 and len(shifted):
            chosen = to_device(shifted, x.device)
            x[chosen] = adjust_hue(x[chosen], to_device(amount[shifted, HUE], x.device))
    chosen = to_device(grey.nonzero().flatten(), x.device)
    x[chosen] = luminance(x[chosen]).expand(-1, x.shape[1], -1, -1)
    return x


def recolour_one_(x: Float[Tensor, "channel height width"], amount: list[float], order: list[int], grey: bool) -> None:
    """The exact form for a single image, in place: large images should not be copied more than necessary."""
    operations = [(kind, amount[kind]) for kind in order]
    if grey:
        operations.append((SATURATION, 0.0))
    for kind, factor in operations:
        if kind == HUE and len(x) == 3 and factor:
            x.copy_(adjust_hue(x.unsqueeze(0), torch.tensor([factor]))[0])
        elif kind != HUE and factor != 1:
            shade = None if kind == BRIGHTNESS else (_luma(len(x)) @ x.flatten(1)).view(x.shape[1:])
            x.mul_(factor)
            if shade is not None:
                x.add_(shade.mean() if kind == CONTRAST else shade, alpha=1 - factor)
            x.clamp_(0, 1)


def fused_matrices(
    amount: Float[Tensor, "batch 4"], order: Int[Tensor, "batch 4"], grey: Bool[Tensor, " batch"], channels: int
) -> tuple[Float[Tensor, "batch {channels} {channels}"], Float[Tensor, "batch {channels} {channels}"]]:
    """The fused form: matrices A and B that turn a colour x into Ax + Bm, where m is the image's mean colour."""
    own, mean = jitter_matrices(amount, order, channels, hue=True)
    s0, s1, s2, s3 = torch.cat((own, mean)).unbind(1)
    product = torch.bmm(torch.bmm(s3, s2), torch.bmm(s1, s0))
    product = torch.where(grey.repeat(2).view(-1, 1, 1), _greys(channels) @ product, product)
    a, total = product.chunk(2)  # the mean of Ax + Bm is Tm
    return a, total - a


def hue_rotation(shift: PerImage) -> Float[Tensor, "batch 3 3"]:
    """Rotations about the grey axis by a fraction of the full circle: a third turns red into green, as in HSV."""
    angle = (2 * math.pi * shift).view(-1, 1, 1)
    cross = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)
    return angle.cos() * torch.eye(3) + (1 - angle.cos()) / 3 + angle.sin() * cross


def adjust_hue(x: Images, shift: PerImage) -> Images:
    """Shift the hue by a fraction of the full circle, in HSV.

    In sixths of the circle the hue is 1 + (g - r)/c, 3 + (b - g)/c or 5 + (r - b)/c if the smallest channel is blue,
    red or green. The case is selected by multiplying with zeros and ones: indexing pixels would take most of the time.
    """
    red, green, blue = x.unbind(1)
    least = x.amin(1)
    spread = x.amax(1).sub_(least)
    not_blue, not_red = (blue - least).sign_(), (red - least).sign_()  # 0 where that channel is the smallest
    first, second = green - red, blue - green
    hue = (red - blue).sub_(second).mul_(not_red).add_(second).sub_(first).mul_(not_blue).add_(first)
    hue.div_(spread.clamp_min(1e-12)).add_(not_red.add_(1).mul_(not_blue).mul_(2))  # plus the 0, 2 or 4
    hue.add_((1 + 6 * shift).view(-1, 1, 1))
    hue.sub_((hue / 6).floor_(), alpha=6)
    # Each channel is a trapezoid over the circle: red is maximal around 0, green around 2, blue around 4.
    out = torch.empty_like(x)
    for channel, (centre, sign, start) in enumerate(((3, 1, -1), (2, -1, 2), (4, -1, 2))):
        part = (hue - centre).abs_().mul_(sign).add_(start).clamp_(0, 1)
        torch.addcmul(least, spread, part, out=out[:, channel])
    return out


def luminance(x: Images) -> Float[Tensor, "batch 1 height width"]:
    """Convert to grey; grey images are unchanged."""
    return (x * to_device(_luma(x.shape[1]), x.device).view(-1, 1, 1)).sum(1, keepdim=True)


def solarise(x: Images, threshold: float = 0.5) -> Images:
    """Invert values at or above the threshold."""
    return torch.where(x >= threshold, 1 - x, x)


def _luma(channels: int) -> Float[Tensor, " {channels}"]:
    return torch.tensor(LUMA) if channels == 3 else torch.ones(1)


def _greys(channels: int) -> Float[Tensor, "{channels} {channels}"]:
    """The matrix that converts a colour to grey."""
    return torch.ones(channels, 1) * _luma(channels)
