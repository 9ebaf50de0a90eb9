"""Batch normalisation of a pretrained encoder: statistics of other images, and layers folded into convolutions."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
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


@contextmanager
def frozen_batch_statistics(network: nn.Module) -> Iterator[None]:
    """Freeze the running statistics of batch normalisation: what passes through the network does not count."""
    layers = batch_norms(network)
    before = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
        layer.num_batches_tracked = None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone()
    try:
        yield
    finally:
        for layer, (momentum, tracked) in zip(layers, before, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, tracked


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


def folded(model: M, example: Tensor) -> M:
    """A copy of a frozen model whose batch normalisations are part of the convolutions before them: faster on a CPU."""
    return _folded(copy.deepcopy(model).eval(), {}, fuse_conv_bn_eval, example)


def folded_in_training(model: M, example: Tensor) -> M:
    """The same for a model that is trained in evaluation mode: it shares its layers, and so all weights, with it.

    On a CPU, the backward passes of a batch normalisation with fixed statistics and of a global pooling, whose gradient
    is not in the order of the activations, together take almost half as long as those of the convolutions.
    """
    shared: dict[int, Any] = {id(one): one for one in (*model.parameters(), *model.buffers())}
    for layer in model.modules():
        if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1)):
            shared[id(layer)] = GlobalPool()
        elif not list(layer.children()):
            shared[id(layer)] = layer
    return _folded(model, shared, ConvNorm, example)


class ConvNorm(nn.Module):
    """A convolution and the batch normalisation with fixed statistics after it, as one convolution."""

    def __init__(self, conv: nn.Conv2d, norm: _BatchNorm) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        mean = norm.running_mean if self.conv.bias is None else norm.running_mean - self.conv.bias
        weights = {"weight": self.conv.weight * scale[:, None, None, None], "bias": norm.bias - mean * scale}
        out: Tensor = functional_call(self.conv, weights, x)  # with the layer's own padding
        return out


class GlobalPool(nn.Module):
    """The mean over all positions, computed with channels last: then its gradient has channels last too."""

    def forward(self, x: Tensor) -> Tensor:
        positions = x.permute(0, 2, 3, 1).flatten(1, 2)
        pooled = positions.sum(1) / positions.shape[1]  # unlike a mean's, the gradient of a sum is a view
        return pooled[:, :, None, None]


def _folded(model: M, memo: dict[int, Any], fold: Callable[[Any, Any], nn.Module], example: Tensor) -> M:
    """A copy of a model with every pair of convolution and batch normalisation replaced by ``fold`` of the two.

    A normalisation is folded into the convolution that is registered before it. Should a model call them in another
    order, its output for ``example`` differs, and the model itself is returned.
    """
    copied = copy.deepcopy(model, memo)
    for parent in list(copied.modules()):
        for (first, conv), (second, norm) in pairwise(list(parent.named_children())):
            if isinstance(conv, nn.Conv2d) and _foldable(norm) and norm.num_features == conv.out_channels:
                setattr(parent, first, fold(conv, norm))
                rest = [getattr(norm, name) for name in ("drop", "act") if hasattr(norm, name)]  # timm's BatchNormAct2d
                setattr(parent, second, nn.Sequential(*rest))
    copied.eval()
    try:
        with torch.no_grad():
            wanted, found = model(example), copied(example)
    except (TypeError, RuntimeError, AttributeError):
        return model
    return copied if torch.allclose(wanted, found, rtol=1e-3, atol=1e-3 * float(wanted.abs().max())) else model


def _foldable(layer: nn.Module) -> TypeGuard[_BatchNorm]:
    return isinstance(layer, _BatchNorm) and layer.affine and layer.track_running_stats
