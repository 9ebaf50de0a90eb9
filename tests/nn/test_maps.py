"""Feature maps against the libraries' own: their mean is what convolutional models pool, tokens are timm's."""

import pytest
import torch
from torch import nn

from glf.nn.backbone import Backbone
from glf.nn.features import Encoder
from glf.nn.maps import FlatMaps, feature_maps, map_shape, with_maps

SIDE = 64


def backbone(name: str, side: int = SIDE) -> Backbone:
    torch.manual_seed(0)
    return Backbone(name, image_size=side, stem="standard").eval()


def images(count: int = 3, side: int = SIDE) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


POOLED_BY_MEAN = [
    "small_resnet",
    "timm:test_resnet",
    "timm:test_efficientnet",
    "timm:regnetx_002",
    "torchvision:resnet18",
    "torchvision:mobilenet_v3_small",
]


@pytest.mark.parametrize("name", POOLED_BY_MEAN)
@torch.no_grad()
def test_the_mean_of_a_map_is_the_feature_of_the_image(name):
    model, x = backbone(name), images()
    maps = feature_maps(model, x)
    assert maps.shape[1:] == map_shape(model)
    assert maps.shape[1] > 1
    torch.testing.assert_close(maps.mean((1, 2)), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["test_vit", "test_vit2", "vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
@torch.no_grad()
def test_patches_are_those_of_timm_without_other_tokens(name):
    model, x = backbone(f"timm:{name}"), images()
    maps = feature_maps(model, x)
    (theirs,) = model.body.forward_intermediates(
        model.normalised(x), indices=1, norm=True, output_fmt="NCHW", intermediates_only=True
    )
    torch.testing.assert_close(maps, theirs.permute(0, 2, 3, 1))


@torch.no_grad()
def test_channels_that_come_last_stay_last():
    model = backbone("timm:swin_tiny_patch4_window7_224", 224)
    maps = feature_maps(model, images(1, 224))
    assert maps.shape == (1, 7, 7, 768)
    torch.testing.assert_close(maps.mean((1, 2)), model(images(1, 224)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_vision_transformer_of_torchvision():
    model, x = backbone("torchvision:vit_b_32"), images(2)
    maps = feature_maps(model, x)
    assert maps.shape == (2, 2, 2, 768)
    seen: list[torch.Tensor] = []
    model.body.encoder.ln.register_forward_hook(lambda module, given, out: seen.append(out))
    model(x)
    torch.testing.assert_close(maps.flatten(1, 2), seen[0][:, 1:])


@pytest.mark.parametrize("name", ["timm:test_vit", "torchvision:resnet18"])
def test_a_place_in_the_map_is_a_place_in_the_image(name):
    """A bright corner changes the cells of that corner most, and rows are not columns."""
    model = backbone(name)
    x = torch.zeros(1, 3, SIDE, SIDE)
    changed = x.clone()
    changed[:, :, :8, -8:] = 1
    with torch.no_grad():
        difference = (feature_maps(model, changed) - feature_maps(model, x)).norm(dim=3)[0]
    assert divmod(int(difference.argmax()), difference.shape[1]) == (0, difference.shape[1] - 1)


def test_models_without_a_map():
    for name in ("torchvision:squeezenet1_0", "torchvision:mobilenet_v2"):
        with pytest.raises(ValueError, match=f"{name} does not show its feature map: use another model"):
            feature_maps(backbone(name), images())
    with pytest.raises(ValueError, match="pixels has no feature map: use a run"):
        with_maps(Encoder("pixels", nn.Identity(), 32, 3))


def test_maps_are_in_half_precision_and_have_their_own_fingerprint():
    model = backbone("timm:test_resnet")
    encoder = Encoder("timm:test_resnet", model, SIDE, 3)
    maps = with_maps(encoder)
    assert maps.grid == map_shape(model)
    assert isinstance(maps.module, FlatMaps)
    assert maps.fingerprint != encoder.fingerprint
    with torch.no_grad():
        rows = maps.module(images())
    assert rows.dtype == torch.float16
    torch.testing.assert_close(rows.view(3, *maps.grid).float(), feature_maps(model, images()), rtol=1e-3, atol=1e-3)
