"""Statistics of batch normalisation, estimated on other images than those an encoder was trained on."""

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from glf.data.batches import to_tensor
from glf.data.images import ImageSet
from glf.nn.backbone import Backbone
from glf.nn.features import resize_to

BATCH = 256


@torch.no_grad()
def estimate_statistics(
    backbone: Backbone, images: ImageSet, indices: np.ndarray, *, device: torch.device | str = "cpu"
) -> None:
    """Set the running means and variances of all batch normalisations to those of these images, batch by batch."""
    layers = [layer for layer in backbone.modules() if isinstance(layer, _BatchNorm)]
    if not layers:
        raise ValueError(f"{backbone.name} has no batch normalisation, so there are no statistics to estimate")
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
