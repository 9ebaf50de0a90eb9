"""A first convolution that whitens: its filters are principal components of patches of the training images.

Neighbouring pixels are nearly equal, so a random first layer sees mostly the brightness, and has to learn to see edges
and colours. Whitening filters show all directions of a patch in the same size from the first step. They are not trained
(Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU; Coates and Ng 2012).
"""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from glf.data.batches import to_tensor
from glf.data.images import ImageSet, stratified_sample
from glf.nn.backbone import Backbone
from glf.nn.features import resize_to

SAMPLE = 2_000  # images
CHUNK = 100  # images whose patches are in memory at a time
EPSILON = 0.01  # of the variance of a pixel, which is 1: weaker directions are noise, and are not amplified further


def patch_covariance(
    images: Iterable[Float[Tensor, "_ channel height width"]], kernel: tuple[int, int]
) -> Float[Tensor, "pixel pixel"]:
    """Covariance of all patches of some batches of images, in float64. Patches do not overlap."""
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for batch in images:
        patches = F.unfold(batch, kernel, stride=kernel).transpose(1, 2).flatten(0, 1).double()
        count += len(patches)
        total, products = total + patches.sum(0), products + patches.T @ patches
    mean = total / count
    return products / count - mean.outer(mean)


def whitening_filters(covariance: Float[Tensor, "pixel pixel"], count: int) -> Float[Tensor, "filter pixel"]:
    r"""Filters :math:`\pm (\lambda_m + \epsilon)^{-1/2} e_m` of the leading eigenvectors of the patches' covariance.

    Each comes with both signs, because a ReLU follows. There are ``count`` filters, or fewer: twice a patch's size.
    """
    values, vectors = torch.linalg.eigh(covariance)
    leading = values.argsort(descending=True)[: count // 2]
    signs = vectors[:, leading].sum(0).sign()  # an eigenvector has no sign of its own: fixed, for all machines
    filters = (vectors[:, leading] * torch.where(signs == 0, 1, signs) / (values[leading] + EPSILON).sqrt()).T
    return torch.cat((filters, -filters))


@torch.no_grad()
def whiten_stem(backbone: Backbone, images: ImageSet) -> None:
    """Set the filters of the first convolution from a sample of the images, and exclude them from training.

    Filters beyond twice the size of a patch keep their random weights; they are not trained either.
    """
    first = next((layer for layer in backbone.body.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is None or first.groups != 1:
        raise ValueError(f"{backbone.name} does not begin with a convolution over all channels: drop --whiten-stem")
    some = stratified_sample(images.targets, min(len(images), SAMPLE), seed=0)
    pixels = (to_tensor(images.pixels[rows]) / 255 for rows in np.array_split(some, -(-len(some) // CHUNK)))
    seen = (backbone.normalised(resize_to(batch, backbone.image_size)) for batch in pixels)
    covariance = patch_covariance(seen, (first.kernel_size[0], first.kernel_size[1]))
    filters = whitening_filters(covariance, first.out_channels)
    first.weight[: len(filters)] = filters.reshape(-1, *first.weight.shape[1:]).to(first.weight.dtype)
    first.weight.requires_grad_(False)
