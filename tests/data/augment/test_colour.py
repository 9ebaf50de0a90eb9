"""Colour operations: the exact form against torchvision, the fused form against arithmetic without clamping."""

import colorsys
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import ColorJitter
from torchvision.transforms.v2 import functional as V

from glf.data.augment import colour as C
from glf.data.augment.policies import ViewPolicy
from pictures import COUNT, PLAIN, close, photos, seeded, unclamped

ADJUST = (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation, V.adjust_hue)
NEUTRAL = torch.tensor([1.0, 1.0, 1.0, 0.0])
STRONG = ViewPolicy(jitter=1, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)


def never(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.bool)


# --- the exact form


@pytest.mark.parametrize(
    ("kind", "channels", "amounts"),
    [
        *((kind, channels, [0.0, 0.3, 0.8, 1.0, 1.4, 1.8]) for kind in range(3) for channels in (1, 3)),
        (C.HUE, 3, [-0.5, -0.2, -0.03, 0.0, 0.1, 0.4]),
    ],
)
def test_single_adjustments_equal_torchvisions(kind, channels, amounts):
    x, amount = photos(channels), NEUTRAL.repeat(6, 1)
    amount[:, kind] = torch.tensor(amounts)
    adjusted = C.recolour(x.clone(), amount, torch.arange(4).repeat(6, 1), never(6))
    for image, ours, value in zip(x, adjusted, amounts, strict=True):
        close(ours, ADJUST[kind](image, value))


@pytest.mark.parametrize("channels", [1, 3])
def test_all_adjustments_in_any_order_equal_torchvisions(channels):
    x = photos(channels).repeat(8, 1, 1, 1)
    amount, order = C.draw_jitter(STRONG, len(x), seeded())
    grey = torch.arange(len(x)) % 3 == 0
    ours = C.recolour(x.clone(), amount, order, grey)
    for image, result, factors, kinds, is_grey in zip(x, ours, amount.tolist(), order.tolist(), grey, strict=True):
        alone = image.clone()
        C.recolour_one_(alone, factors, kinds, bool(is_grey))
        for kind in kinds:
            image = ADJUST[kind](image, factors[kind])
        expected = V.rgb_to_grayscale(image, channels) if is_grey else image
        close(result, expected)
        close(alone, expected)
    assert len(set(map(tuple, order.tolist()))) > 12, "many of the 24 orders were tried"


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_solarised_images_equal_torchvisions(channels):
    x = photos(channels)
    close(C.luminance(x), V.rgb_to_grayscale(x) if channels == 3 else x)
    close(C.solarise(x), V.solarize(x, 0.5))


def test_the_hue_of_grey_pixels_and_of_ties_is_defined():
    x = torch.tensor([[0.3, 0.3, 0.3], [0.5, 0.5, 0.1], [0.1, 0.5, 0.5], [0.5, 0.1, 0.5], [0, 0, 0], [1, 1, 1]])
    x = x.view(6, 3, 1, 1)
    for shift in (-0.5, -0.1, 0.25, 1 / 3):
        close(C.adjust_hue(x, torch.full((6,), shift)), torch.stack([V.adjust_hue(image, shift) for image in x]))


# --- the fused form


@pytest.mark.parametrize("channels", [1, 3])
def test_fused_matrices_are_the_unclamped_operations(channels):
    x = photos(channels).repeat(8, 1, 1, 1)
    amount, order = C.draw_jitter(STRONG, len(x), seeded())
    grey = torch.arange(len(x)) % 3 == 0
    a, b = C.fused_matrices(amount, order, grey, channels)
    ours = torch.baddbmm(b @ x.mean((2, 3)).unsqueeze(2), a, x.flatten(2)).view_as(x)
    for image, result, factors, kinds, is_grey in zip(x, ours, amount.tolist(), order.tolist(), grey, strict=True):
        expected = unclamped(image.double().numpy(), factors, kinds, bool(is_grey))
        close(result.double(), torch.from_numpy(np.array(expected)))


def test_the_two_forms_agree_where_nothing_is_clamped():
    x, amount = 0.4 + 0.2 * photos(), NEUTRAL.repeat(6, 1)
    amount[:, :3] = torch.tensor([1.1, 0.9, 1.2])
    order = torch.rand(6, 4, generator=seeded()).argsort(1)
    a, b = C.fused_matrices(amount, order, never(6), 3)
    fused = torch.baddbmm(b @ x.mean((2, 3)).unsqueeze(2), a, x.flatten(2)).view_as(x)
    close(C.recolour(x.clone(), amount, order, never(6)), fused)


def test_a_third_of_the_circle_permutes_the_channels_as_in_hsv():
    x = photos()
    for shift, roll in ((1 / 3, 1), (-1 / 3, -1), (0.0, 0)):
        turned = (C.hue_rotation(torch.full((6,), shift)) @ x.flatten(2)).view_as(x)
        close(turned, x.roll(roll, 1))
        close(turned, C.adjust_hue(x, torch.full((6,), shift)))


# --- random parameters


def ks(ours: Tensor, theirs: Tensor) -> float:
    """The largest distance between two empirical distribution functions."""
    both = torch.cat((ours, theirs)).sort().values
    below = [torch.searchsorted(v.sort().values, both, right=True) / len(v) for v in (ours, theirs)]
    return float((below[0] - below[1]).abs().max())


@pytest.mark.parametrize("view", [ViewPolicy(jitter=1), STRONG, ViewPolicy(jitter=1, brightness=1.5, hue=0.5)], ids=str)
def test_parameters_are_distributed_as_torchvisions(view):
    amount, order = C.draw_jitter(view, COUNT, seeded())
    jitter = ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)
    ranges = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        drawn = [ColorJitter.get_params(*ranges) for _ in range(COUNT)]
    for kind in range(4):
        theirs = torch.tensor([one[1 + kind] for one in drawn])
        assert ks(amount[:, kind], theirs) < 1.95 * math.sqrt(2 / COUNT), kind  # at the level of 0.1 %
    positions = torch.stack([(order == kind).double().argmax(1).bincount(minlength=4) for kind in range(4)])
    assert ((positions - COUNT / 4).abs() < 4 * math.sqrt(COUNT * 3 / 16)).all(), "every position is equally likely"


def test_images_without_jitter_get_neutral_parameters():
    amount, _ = C.draw_jitter(replace(STRONG, jitter=0.8), COUNT, seeded())
    neutral = (amount == NEUTRAL).all(1)
    assert abs(neutral.double().mean() - 0.2) <= 4 * math.sqrt(0.16 / COUNT)
    assert not (amount[~neutral] == NEUTRAL).all(1).any()
    assert (C.draw_jitter(PLAIN, 50, seeded())[0] == NEUTRAL).all()


def test_the_hue_is_shifted_by_the_drawn_amount():
    x = torch.tensor([0.4, 0.6, 0.6]).view(1, 3, 1, 1).repeat(50, 1, 1, 1)  # hue 1/2
    amount, order = C.draw_jitter(replace(PLAIN, jitter=1, hue=0.2), 50, seeded())
    turned = C.recolour(x, amount, order, never(50))
    hues = torch.tensor([colorsys.rgb_to_hsv(*pixel)[0] for pixel in turned[:, :, 0, 0].tolist()])
    close(hues - 0.5, amount[:, C.HUE])
