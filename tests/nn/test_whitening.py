"""Whitening filters as a first layer."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from glf.config.training import AdaptConfig, PretrainConfig
from glf.data.images import ImageSet
from glf.nn.backbone import Backbone
from glf.nn.weights import load_backbone
from glf.nn.whitening import EPSILON, patch_covariance, whiten_stem, whitening_filters


def correlated(count: int = 300, channels: int = 3, side: int = 16) -> torch.Tensor:
    """Images whose neighbouring pixels are alike, with a mean of 0 and a variance of about 1."""
    x = torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = F.avg_pool2d(F.pad(x, (2, 2, 2, 2), mode="circular"), 5, stride=1)
    return x / x.std()


def image_set(channels: int) -> ImageSet:
    pixels = (40 * correlated(60, channels).permute(0, 2, 3, 1).numpy() + 128).clip(0, 255).astype(np.uint8)
    return ImageSet(pixels=pixels, targets=np.full(60, -1), classes=(), name="x", key="x")


def test_responses_are_uncorrelated_and_of_the_variance_that_epsilon_leaves() -> None:
    x = correlated()
    filters = whitening_filters(patch_covariance(x.split(70), (4, 4)), 32).reshape(32, 3, 4, 4)
    responses = F.conv2d(x, filters[:16], stride=4).transpose(0, 1).flatten(1)
    patches = F.unfold(x, 4, stride=4).transpose(1, 2).flatten(0, 1).numpy()
    values = np.linalg.eigvalsh(np.cov(patches.T, bias=True))[::-1][:16]
    expected = np.diag(values / (values + EPSILON))
    np.testing.assert_allclose(np.cov(responses.numpy(), bias=True), expected, atol=1e-8)
    assert values[0] > 15 * values[15], "the patches themselves are far from white"


def test_every_filter_comes_with_both_signs_and_there_are_at_most_twice_a_patch() -> None:
    filters = whitening_filters(patch_covariance([correlated()], (2, 2)), 64)
    assert filters.shape == (24, 12)
    assert torch.equal(filters[:12], -filters[12:])
    assert torch.linalg.matrix_rank(filters[:12]) == 12


@pytest.mark.parametrize(("name", "filters"), [("small_resnet", 32), ("timm:resnet18", 54)])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_first_convolution_is_set_and_not_trained(name: str, filters: int, channels: int) -> None:
    torch.manual_seed(0)
    backbone = Backbone(name, channels=channels, image_size=16)
    before = backbone.body.conv1.weight.clone()
    whiten_stem(backbone, image_set(channels))
    weight = backbone.body.conv1.weight
    changed = (weight != before).flatten(1).any(1).sum()
    assert changed == min(filters, 18 * channels), "the others stay random"
    assert [name for name, one in backbone.body.named_parameters() if not one.requires_grad] == ["conv1.weight"]


def test_a_backbone_without_a_convolution_is_refused() -> None:
    backbone = Backbone("timm:test_vit", image_size=32)
    backbone.body.patch_embed = torch.nn.Identity()
    with pytest.raises(ValueError, match="does not begin with a convolution over all channels: drop --whiten-stem"):
        whiten_stem(backbone, image_set(3))


def test_a_run_keeps_the_filters(small_run: Callable[..., Path]) -> None:
    """Patches of 3 x 3 grey pixels have nine directions: 18 filters of the 32."""
    run = small_run(method="byol", whiten_stem=True)
    filters = load_backbone(run).body.conv1.weight.flatten(1)
    assert torch.equal(filters[:9], -filters[9:18])
    small_run(method="byol", whiten_stem=True, epochs=2, overwrite=True)
    assert torch.equal(load_backbone(run).body.conv1.weight.flatten(1), filters), "not trained, and without a seed"


def test_what_it_cannot_be_combined_with(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="would replace the first layer of --weights"):
        PretrainConfig(whiten_stem=True, weights=tmp_path / "w.pt")
    with pytest.raises(ValueError, match="do not apply to an adaptation"):
        AdaptConfig(whiten_stem=True)
