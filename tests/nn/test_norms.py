"""Batch normalisation: statistics that are estimated on images, and layers that are folded into convolutions."""

import numpy as np
import pytest
import torch
from torch import nn

from glf.data.images import ImageSet
from glf.data.sources import load_images
from glf.nn import norms
from glf.nn.backbone import Backbone
from glf.nn.norms import ConvNorm, estimate_statistics, folded, folded_in_training


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load_images("fashion-mini").select(np.arange(60))


def network() -> Backbone:
    torch.manual_seed(0)
    return Backbone("small_resnet", channels=1, image_size=28, mean=(0.3,), std=(0.3,)).eval()


def first_activations(backbone: Backbone, images: ImageSet, rows: np.ndarray) -> torch.Tensor:
    """What the first batch normalisation sees."""
    x = torch.from_numpy(images.pixels[rows]).permute(0, 3, 1, 2).float() / 255
    return backbone.body.conv1(backbone.normalised(x)).double()


def test_the_statistics_are_those_of_the_images(images: ImageSet) -> None:
    backbone, rows = network(), np.arange(10, 50)
    estimate_statistics(backbone, images, rows)
    seen = first_activations(backbone, images, rows)
    first = backbone.body.bn1
    torch.testing.assert_close(first.running_mean.double(), seen.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first.running_var.double(), seen.var((0, 2, 3)), rtol=1e-4, atol=1e-5)
    other = first_activations(backbone, images, np.arange(10))
    assert not torch.allclose(first.running_mean.double(), other.mean((0, 2, 3)), rtol=1e-3)


def test_batches_count_alike(images: ImageSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over batches of their statistics; a last batch of one image has none."""
    backbone, rows = network(), np.arange(41)
    monkeypatch.setattr(norms, "BATCH", 20)
    estimate_statistics(backbone, images, rows)
    order = np.random.default_rng(0).permutation(rows)
    parts = [first_activations(backbone, images, order[start : start + 20]) for start in (0, 20)]
    expected = torch.stack([part.var((0, 2, 3)) for part in parts]).mean(0)
    torch.testing.assert_close(backbone.body.bn1.running_var.double(), expected, rtol=1e-4, atol=1e-5)
    assert backbone.body.bn1.num_batches_tracked == 2


def test_nothing_else_changes_and_features_do(images: ImageSet) -> None:
    backbone = network()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    momenta = [layer.momentum for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d)]
    x = torch.rand(2, 1, 28, 28)
    features = backbone(x).detach()
    estimate_statistics(backbone, images, np.arange(40))
    changed = {name for name, value in backbone.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.rpartition(".")[2] for name in changed} == {"running_mean", "running_var", "num_batches_tracked"}
    assert len(changed) == 3 * len(momenta)
    assert [layer.momentum for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d)] == momenta
    assert not any(layer.training for layer in backbone.modules())
    assert not torch.allclose(backbone(x), features)


MODELS = pytest.mark.parametrize(
    ("name", "size"), [("small_resnet", 28), ("timm:tf_efficientnet_lite0", 64), ("torchvision:resnet18", 32)]
)


def with_statistics(name: str, size: int) -> Backbone:
    """A model whose batch normalisations have statistics, scales and shifts of their own."""
    torch.manual_seed(0)
    backbone = Backbone(name, channels=3, image_size=size, stem="standard").eval()
    with torch.no_grad():
        for layer in backbone.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.uniform_(-0.2, 0.2)
                layer.running_var.uniform_(0.5, 1.5)
                layer.weight.uniform_(0.5, 1.5)
                layer.bias.uniform_(-0.2, 0.2)
    return backbone


@MODELS
def test_folded_layers_give_the_same_features(name: str, size: int) -> None:
    backbone = with_statistics(name, size)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    x = torch.rand(4, 3, size, size)
    faster = folded(backbone, x[:2])
    with torch.no_grad():
        torch.testing.assert_close(faster(x), backbone(x), rtol=1e-4, atol=1e-4)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in faster.modules())
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items()), "a copy"


class AnotherOrder(nn.Module):
    """Its layers are registered in another order than they are called in."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        nn.init.uniform_(self.norm.running_mean, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(x).relu())


def test_layers_that_are_called_in_another_order_are_not_folded() -> None:
    torch.manual_seed(0)
    model, x = AnotherOrder().eval(), torch.rand(4, 3, 8, 8)
    assert torch.equal(folded(model, x)(x), model(x))
    assert folded_in_training(model, x) is model


@MODELS
def test_layers_folded_in_training_have_the_gradients_of_the_model(name: str, size: int) -> None:
    backbone = with_statistics(name, size).double()
    x = torch.rand(4, 3, size, size, dtype=torch.float64)
    faster = folded_in_training(backbone, x[:2])
    assert any(isinstance(layer, ConvNorm) for layer in faster.modules())
    found = []
    for model in (backbone, faster):
        backbone.zero_grad()
        features = model(x)
        (features * torch.linspace(-1, 2, features.numel(), dtype=torch.float64).view_as(features)).sum().backward()
        found.append({name: p.grad for name, p in backbone.named_parameters()} | {"features": features.detach()})
    assert all(value is not None and value.abs().max() > 0 for value in found[1].values())
    for key, value in found[0].items():
        assert torch.allclose(found[1][key], value, rtol=1e-8, atol=1e-10), key


def test_layers_folded_in_training_follow_the_model() -> None:
    backbone = with_statistics("small_resnet", 28)
    x = torch.rand(4, 3, 28, 28)
    faster = folded_in_training(backbone, x)
    other = {name: value * 1.1 if value.is_floating_point() else value for name, value in backbone.state_dict().items()}
    before = faster(x)
    backbone.load_state_dict(other)
    torch.testing.assert_close(faster(x), backbone(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(faster(x), before, rtol=1e-2)
    assert {id(p) for p in faster.parameters()} == {id(p) for p in backbone.parameters()}
