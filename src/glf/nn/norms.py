"""Batch normalisation of a pretrained encoder: statistics of other images, and layers folded into convolutions."""

import copy
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from glf.data.batches import to_tensor
from glf.data.images import ImageSet
from glf.nn.backbone import Backbone
from glf.nn.features import resize_to

BATCH = 256
M = TypeVar("M", bound=nn.Module)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """The batch normalisation layers of a model."""
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


@torch.no_grad()
def estimate_statistics(
    backbone: Backbone, images: ImageSet, indices: np.ndarray, *, device: torch.device | str = "cpu"
) -> None:
    """Set the running means and variances of all batch normalisations to those of these images, batch by batch."""
    layers = batch_norms(backbone)
    momenta = [layer.momentum for layer in layers]
    backbone.eval().to(device)
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the plain average of all batches
        layer.train()
    order = np.random.default_rng(0).permutation(indices)  # a folder lists class by class
    for start in range(0, len(order), BATCH):
        rows = np.sort(order[start : start + BATCH])
        if len(rows) > 1:
            backbone(resize_to(to_tensor(images.pixels[rows]).to(device).float() / 255, backbone.image_size))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    backbone.eval()


@torch.no_grad()
def folded(model: M, example: Tensor) -> M:
    """A copy of a frozen model whose batch normalisations are part of the convolutions before them: faster on a CPU.

    A normalisation is folded into the convolution that is registered before it. Should a model call them in another
    order, its output for ``example`` differs, and an unchanged copy is returned.
    """
    model = copy.deepcopy(model).eval()
    fused = copy.deepcopy(model)
    for parent in list(fused.modules()):
        for (first, conv), (second, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, _BatchNorm) and norm.num_features == conv.out_channels:
                setattr(parent, first, fuse_conv_bn_eval(conv, norm))
                rest = [getattr(norm, name) for name in ("drop", "act") if hasattr(norm, name)]  # timm's BatchNormAct2d
                setattr(parent, second, nn.Sequential(*rest))
    try:
        wanted, found = model(example), fused(example)
    except (TypeError, RuntimeError, AttributeError):
        return model
    return fused if torch.allclose(wanted, found, rtol=1e-3, atol=1e-3 * float(wanted.abs().max())) else model
