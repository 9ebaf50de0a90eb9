"""Backbones by name: output shapes, stems, normalisation."""

import pytest
import torch
import torchvision
from torch import nn

from glf.nn.backbone import Backbone, create_body


def images(channels: int, size: int, count: int = 3) -> torch.Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "channels", "size", "width"),
    [
        ("small_resnet", 1, 28, 256),
        ("small_resnet", 3, 64, 256),
        ("resnet18", 1, 28, 512),
        ("timm:resnet18", 3, 64, 512),
        ("timm:resnet10t", 3, 32, 512),
        ("torchvision:resnet18", 1, 32, 512),
        ("torchvision:shufflenet_v2_x0_5", 1, 32, 1024),
        ("torchvision:mobilenet_v3_small", 3, 32, 576),
        ("timm:vit_tiny_patch16_224", 3, 32, 192),
        ("timm:vit_tiny_patch16_224", 1, 28, 192),
        ("timm:convnext_atto", 3, 32, 320),
        ("timm:tf_efficientnet_lite0", 3, 32, 1280),
        ("timm:tf_efficientnet_lite0", 1, 64, 1280),
    ],
)
def test_images_in_features_out(name, channels, size, width):
    backbone = Backbone(name, channels=channels, image_size=size)
    assert backbone.training
    assert backbone.body.training, "measuring the width leaves the training mode unchanged"
    x = images(channels, size).requires_grad_()
    features = backbone(x)
    assert features.shape == (3, backbone.width) == (3, width)
    assert not torch.allclose(features[0], features[1])
    (gradient,) = torch.autograd.grad(features.pow(2).sum(), x)
    assert bool((gradient.abs().amax((2, 3)) > 0).all()), "every image and channel has an effect"


# --- stems


@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize(
    ("size", "stem", "kernel", "pooled"),
    [
        (32, "auto", 3, False),
        (48, "auto", 3, False),
        (49, "auto", 3, True),
        (64, "auto", 3, True),
        (112, "auto", 3, True),
        (113, "auto", 7, True),
        (224, "auto", 7, True),
        (32, "standard", 7, True),
        (224, "small", 3, False),
    ],
)
def test_the_stem_depends_on_the_image_size(library, size, stem, kernel, pooled):
    model = create_body(f"{library}:resnet18", 3, size, stem)
    stride = 2 if kernel == 7 else 1
    assert model.conv1.kernel_size == (kernel, kernel)
    assert model.conv1.stride == (stride, stride)
    assert model.conv1.bias is None
    assert isinstance(model.maxpool, nn.MaxPool2d if pooled else nn.Identity)
    layers = nn.Sequential(model.conv1, model.maxpool)
    halvings = (stride == 2) + pooled
    assert layers(torch.zeros(1, 3, 64, 64)).shape[-1] == 64 >> halvings


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_the_standard_stem_leaves_the_model_unchanged(library):
    ours = create_body(f"{library}:resnet18", 3, 224, "auto").state_dict()
    theirs = torchvision.models.resnet18().state_dict()
    del theirs["fc.weight"], theirs["fc.bias"]
    assert {name: t.shape for name, t in ours.items()} == {name: t.shape for name, t in theirs.items()}


@pytest.mark.parametrize(
    ("name", "size", "layer", "kernel", "stride"),
    [
        ("resnet10t", 32, "conv1.0", 3, 1),  # a deep stem, 3x3 already
        ("resnet10t", 224, "conv1.0", 3, 2),
        ("convnext_atto", 32, "stem.0", 4, 2),
        ("convnext_atto", 224, "stem.0", 4, 4),
        ("tf_efficientnet_lite0", 32, "conv_stem", 3, 1),
        ("tf_efficientnet_lite0", 64, "conv_stem", 3, 1),
        ("tf_efficientnet_lite0", 224, "conv_stem", 3, 2),
        ("vit_tiny_patch16_224", 32, "patch_embed.proj", 4, 4),
        ("vit_tiny_patch16_224", 64, "patch_embed.proj", 8, 8),
        ("vit_tiny_patch16_224", 160, "patch_embed.proj", 16, 16),
    ],
)
def test_other_models_keep_large_feature_maps_too(name, size, layer, kernel, stride):
    first = create_body(f"timm:{name}", 3, size, "auto").get_submodule(layer)
    assert (first.kernel_size[0], first.stride[0]) == (kernel, stride)


@pytest.mark.parametrize(
    ("size", "sides"),
    [(28, (14, 7, 4, 2)), (64, (16, 8, 4, 2))],  # small_resnet has stride 2, and pools from 49 px on
)
def test_the_feature_maps_of_small_resnet(size, sides):
    model = create_body("small_resnet", 1, size, "auto")
    x, seen = model.maxpool(model.act1(model.bn1(model.conv1(torch.zeros(1, 1, size, size))))), []
    for layer in (model.layer1, model.layer2, model.layer3, model.layer4):
        x = layer(x)
        seen.append(x.shape[-1])
    assert tuple(seen) == sides


# --- normalisation, description, errors


@pytest.mark.parametrize(
    ("channels", "mean", "std"), [(1, None, None), (1, (0.2,), (0.5,)), (3, (0.1, 0.4, 0.6), (0.2, 0.3, 0.5))]
)
def test_images_are_normalised(channels, mean, std):
    backbone = Backbone("small_resnet", channels=channels, image_size=28, mean=mean, std=std).eval()
    x = images(channels, 28)
    centre, scale = (torch.tensor(v).view(-1, 1, 1) for v in (mean or (0.5,) * channels, std or (0.25,) * channels))
    torch.testing.assert_close(backbone(x), backbone.body((x - centre) / scale))
    assert not torch.allclose(backbone(x), backbone.body(x))
    assert list(backbone.state_dict()) == [f"body.{name}" for name in backbone.body.state_dict()]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("small_resnet", {"channels": 1, "image_size": 28, "mean": (0.3,), "std": (0.7,)}),
        ("torchvision:resnet18", {"channels": 1, "image_size": 32, "stem": "standard"}),
        ("timm:vit_tiny_patch16_224", {"image_size": 48}),
    ],
)
def test_the_description_builds_the_same_backbone(name, options):
    backbone = Backbone(name, **options)
    described = backbone.describe()
    again = Backbone(**described)
    assert again.describe() == described
    assert repr(again) == repr(backbone)
    again.load_state_dict(backbone.state_dict())
    x = images(backbone.channels, backbone.image_size)
    assert torch.equal(again.eval()(x), backbone.eval()(x))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("small_resnt", "unknown backbone 'small_resnt' - did you mean 'small_resnet'"),
        ("timm:convnext_ato", "unknown backbone 'timm:convnext_ato' - did you mean 'convnext_atto'"),
        ("torchvision:resnet19", "unknown backbone 'torchvision:resnet19' - did you mean 'resnet18'"),
        ("torchvision:vit_tiny_patch16_224", "unknown backbone"),  # a timm model
        ("tim:resnet18", "unknown library 'tim'"),
        ("torchvision:vit_b_16", "fixed patches: for 32 px use a timm model"),
    ],
)
def test_unknown_names_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        Backbone(name, image_size=32)


def test_a_body_that_returns_maps_is_refused():
    with pytest.raises(ValueError, match=r"features of shape \(1, 768, 1, 1\), not \(batch, feature\)"):
        Backbone("torchvision:convnext_tiny", image_size=32)


def test_a_model_that_refuses_a_size_is_reported():
    with pytest.raises(ValueError, match=r"mixer_s32_224 cannot take images of 32 px .*--image-size"):
        Backbone("timm:mixer_s32_224", image_size=32)
