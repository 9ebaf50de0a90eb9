"""Statistics of batch normalisation, estimated on images: those of the activations, and nothing else changes."""

import numpy as np
import pytest
import torch
from torch import nn

from glf.data.images import ImageSet
from glf.data.sources import load_images
from glf.nn import norms
from glf.nn.backbone import Backbone
from glf.nn.norms import estimate_statistics


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


def test_a_model_without_batch_normalisation_is_refused(images: ImageSet) -> None:
    with pytest.raises(ValueError, match="vit_tiny_patch16_224 has no batch normalisation"):
        estimate_statistics(Backbone("timm:vit_tiny_patch16_224", channels=1, image_size=28), images, np.arange(4))
