"""A first convolution that whitens: its filters are principal components of patches of the training images.

Neighbouring pixels are nearly equal, so a random first layer sees mostly the brightness, and has to learn to see edges
and colours. Whitening filters show all directions of a patch in the same size from the first step. They are not trained
(Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU; Coates and Ng 2012).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from glf.data.batches import to_tensor
from glf.data.images import ImageSet, stratified_sample
from glf.nn.backbone import Backbone
from glf.nn.features import resize_to

SAMPLE = 2_000  # images
EPSILON = 0.01  # of the variance of a pixel, which is 1: weaker directions are noise, and are not amplified further


def whitening_filters(
    images: Float[Tensor, "image channel height width"], kernel: tuple[int, int], count: int
) -> Float[Tensor, "count channel kernel_height kernel_width"]:
    r"""Filters :math:`\pm (\lambda_m + \epsilon)^{-1/2} e_m` of the leading eigenvectors of the patches' covariance.

    Each comes with both signs, because a ReLU follows. There are ``count`` filters, or fewer: twice a patch's size.
    """
    channels = images.shape[1]
    patches = F.unfold(images, kernel, stride=kernel).transpose(1, 2).flatten(0, 1).double()
    values, vectors = torch.linalg.eigh(torch.cov(patches.T, correction=0))
    leading = values.argsort(descending=True)[: count // 2]
    signs = vectors[:, leading].sum(0).sign()  # an eigenvector has no sign of its own: fixed, for all machines
    filters = (vectors[:, leading] * torch.where(signs == 0, 1, signs) / (values[leading] + EPSILON).sqrt()).T
    return torch.cat((filters, -filters)).reshape(-1, channels, *kernel).to(images.dtype)


@torch.no_grad()
def whiten_stem(backbone: Backbone, images: ImageSet) -> None:
    """Set the filters of the first convolution from a sample of the images, and exclude them from training.

    Filters beyond twice the size of a patch keep their random weights; they are not trained either.
    """
    first = next((layer for layer in backbone.body.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is None or first.groups != 1:
        raise ValueError(f"{backbone.name} does not begin with a convolution over all channels: drop --whiten-stem")
    some = stratified_sample(images.targets, min(len(images), SAMPLE), seed=0)
    pixels = resize_to(to_tensor(images.pixels[some]).to(first.weight.dtype) / 255, backbone.image_size)
    height, width = first.kernel_size[0], first.kernel_size[1]
    filters = whitening_filters(backbone.normalised(pixels), (height, width), first.out_channels)
    first.weight[: len(filters)] = filters
    first.weight.requires_grad_(False)
