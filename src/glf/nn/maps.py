"""Feature maps: features of the cells or patches of an image, before a backbone pools them to those of the image."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glf.nn.backbone import Backbone
from glf.nn.features import Encoder

Maps = Float[Tensor, "batch row column feature"]


class FlatMaps(nn.Module):
    """The feature maps of a backbone in half precision, each as one row."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch value"]:
        return feature_maps(self.backbone, x).flatten(1).half()


def with_maps(encoder: Encoder) -> Encoder:
    """The same encoder, which computes feature maps; ValueError if it has none."""
    backbone = backbone_of(encoder.name, encoder.module)
    return encoder._replace(module=FlatMaps(backbone), grid=map_shape(backbone))


def backbone_of(name: str, module: nn.Module) -> Backbone:
    """The module, if it is one that may have maps."""
    if not isinstance(module, Backbone):
        raise ValueError(f"{name} has no feature map: use a run, or a timm: or torchvision: model")
    return module


@torch.no_grad()
def map_shape(backbone: Backbone) -> tuple[int, int, int]:
    """Rows, columns and features of a map, measured on a blank image."""
    training = backbone.training
    side = backbone.image_size
    rows, columns, width = feature_maps(
        backbone.eval(), torch.zeros(1, backbone.channels, side, side, device=backbone.mean.device)
    ).shape[1:]
    backbone.train(training)
    return rows, columns, width


def feature_maps(backbone: Backbone, x: Float[Tensor, "batch channel height width"]) -> Maps:
    """Return the last features of a backbone that have a place in the image; of a transformer, the patch tokens.

    They are what the backbone's own pooling takes: after the last normalisation, without class and register tokens.
    """
    body: Any = backbone.body
    x = backbone.normalised(x)
    found = body.forward_features(x) if hasattr(body, "forward_features") else _before_pooling(backbone.name, body, x)
    if isinstance(found, Tensor) and found.ndim == 4:
        last = getattr(body, "output_fmt", "NCHW") == "NHWC"
        return found if last else found.permute(0, 2, 3, 1)
    if isinstance(found, Tensor) and found.ndim == 3:
        tokens = found[:, int(getattr(body, "num_prefix_tokens", 0)) :]
        count = tokens.shape[1]
        rows, columns = getattr(getattr(body, "patch_embed", None), "grid_size", None) or 2 * (math.isqrt(count),)
        if rows * columns == count:
            return tokens.reshape(len(tokens), rows, columns, -1)
    raise _no_map(backbone.name)


def _before_pooling(name: str, body: nn.Module, x: Tensor) -> Tensor:
    """What a model of torchvision pools; of a vision transformer, its patch tokens."""
    found: list[Tensor] = []
    encoder, pooling = getattr(body, "encoder", None), getattr(body, "avgpool", None)
    if isinstance(encoder, nn.Module):  # of a vision transformer, whose first token is that of the class
        hook = encoder.register_forward_hook(lambda module, given, out: found.append(out[:, 1:]))
    elif isinstance(pooling, nn.Module):
        hook = pooling.register_forward_pre_hook(lambda module, given: found.append(given[0]))
    else:
        raise _no_map(name)
    try:
        body(x)
    finally:
        hook.remove()
    return found[0]


def _no_map(name: str) -> ValueError:
    return ValueError(
        f"{name} does not show its feature map: use another model, such as a ResNet or a vision transformer"
    )
