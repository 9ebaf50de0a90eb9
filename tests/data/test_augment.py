"""Augmentation against torchvision, image by image, and against the recipe's own numbers."""

import colorsys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Generator, Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as V

from glf.data import augment as A
from glf.data.loader import to_tensor
from glf.data.sources import load
from glf.data.views import RECIPES, View
from glf.types import Batch

COUNT = 4000
QUANTILES = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
# Nothing happens to the colours, and the crop is the whole image; tests turn on what they look at.
PLAIN = View(crop=(1, 1), ratio=(1, 1), flip=0, jitter=0, brightness=0, contrast=0, saturation=0, hue=0, grey=0)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads only get in each other's way on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def stored() -> Tensor:
    return to_tensor(load("fashion-mini").pixels[:100])


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def raw(channels: int = 3, height: int = 28, width: int = 28, count: int = 6) -> Tensor:
    """Real images, uint8; colour ones have three different images as their channels."""
    return stored()[: count * channels].view(count, channels, 28, 28)[:, :, :height, :width].contiguous()


def photos(channels: int = 3) -> Tensor:
    return raw(channels).float() / 255


def batch(images: Tensor) -> Batch:
    n = len(images)
    return Batch(images, torch.arange(n) % 3, torch.arange(n) + 100, torch.randn(n, 5, generator=seeded()))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


# --- single operations


@pytest.mark.parametrize(
    ("name", "channels", "amounts"),
    [
        *((f"adjust_{kind}", 1, [0.0, 0.3, 0.8, 1.0, 1.4, 1.8]) for kind in ("brightness", "contrast", "saturation")),
        *((f"adjust_{kind}", 3, [0.0, 0.3, 0.8, 1.0, 1.4, 1.8]) for kind in ("brightness", "contrast", "saturation")),
        ("adjust_hue", 3, [-0.5, -0.2, -0.03, 0.0, 0.1, 0.4]),
    ],
)
def test_adjustments_are_torchvisions(name, channels, amounts):
    x = photos(channels)
    adjusted = getattr(A, name)(x, torch.tensor(amounts))
    for image, result, amount in zip(x, adjusted, amounts, strict=True):
        close(result, getattr(V, name)(image, amount))


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_solarised_images_are_torchvisions(channels):
    x = photos(channels)
    close(A.luminance(x), V.rgb_to_grayscale(x) if channels == 3 else x)
    close(A.solarise(x), V.solarize(x, 0.5))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("side", "kernel"), [(28, 3), (39, 3), (40, 5), (60, 7)])
def test_blur_is_torchvisions(channels, side, kernel):
    x = V.resize(photos(channels), [side, side + 3], antialias=True)
    sigma = torch.tensor([0.1, 0.3, 0.7, 1.0, 1.5, 2.0])
    for image, result, s in zip(x, A.blur(x, sigma), sigma.tolist(), strict=True):
        close(result, V.gaussian_blur(image, [kernel, kernel], [s, s]))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("size", [16, 28, 45])
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 28, 20), (3, 17, 28)])
def test_crops_are_torchvisions(channels, height, width, size, flip):
    x = raw(channels, height, width)
    pixels = [  # left, top, width, height
        (0, 0, width, height), (3, 5, 11, 8), (0, 2, 1, 9), (4, 0, 9, 1), (width - 7, height - 6, 7, 6), (2, 2, 5, 12),
    ]  # fmt: skip
    edges = torch.tensor([(left, top, left + w, top + h) for left, top, w, h in pixels])
    boxes = edges / torch.tensor([width, height, width, height])
    cropped = A.crop(x, boxes[:, [2, 1, 0, 3]] if flip else boxes, size)
    for image, result, (left, top, w, h) in zip(x, cropped, pixels, strict=True):
        expected = V.resized_crop(image.float() / 255, top, left, h, w, [size, size], antialias=False)
        close(result, V.horizontal_flip(expected) if flip else expected)


# --- boxes


def in_pixels(boxes: Tensor, height: int, width: int) -> Tensor:
    """left, top, width, height"""
    x0, y0, x1, y1 = (boxes.double() * torch.tensor([width, height, width, height])).unbind(1)
    return torch.stack((torch.minimum(x0, x1), y0, (x1 - x0).abs(), y1 - y0), dim=1)


@pytest.mark.parametrize(
    ("crop", "ratio", "height", "width"),
    [
        ((0.2, 1.0), (3 / 4, 4 / 3), 28, 28),
        ((0.2, 1.0), (3 / 4, 4 / 3), 300, 90),  # most tries do not fit
        ((0.08, 1.0), (3 / 4, 4 / 3), 200, 224),
        ((0.3, 0.5), (0.5, 3.0), 100, 300),
    ],
)
def test_boxes_are_drawn_as_torchvision_draws_them(crop, ratio, height, width):
    view = View(crop=crop, ratio=ratio)
    box = in_pixels(A.draw_boxes(view, height, width, COUNT, seeded()), height, width)
    torch.testing.assert_close(box, box.round(), rtol=0, atol=1e-4)
    left, top, w, h = box.round().unbind(1)
    assert bool(((left >= 0) & (top >= 0) & (w >= 1) & (h >= 1) & (left + w <= width) & (top + h <= height)).all())

    blank = torch.empty(1, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        theirs = [RandomResizedCrop.get_params(blank, crop, ratio) for _ in range(COUNT)]
    top_, left_, h_, w_ = torch.tensor(theirs).double().unbind(1)
    for name, ours, reference, span in [
        ("area", w * h, w_ * h_, height * width),
        ("log ratio", (w / h).log(), (w_ / h_).log(), 1.0),
        ("centre x", left + w / 2, left_ + w_ / 2, width),
        ("centre y", top + h / 2, top_ + h_ / 2, height),
    ]:
        # Four standard errors of the difference of two means; quantiles of 4,000 are coarser, and pixels are whole.
        error = 4 * (ours.var() / COUNT + reference.var() / COUNT).sqrt() + 1e-9
        assert abs(ours.mean() - reference.mean()) <= error, name
        q = QUANTILES.double()
        apart = (ours.quantile(q) - reference.quantile(q)).abs().max() / span
        assert apart < 0.05 + 1 / min(height, width), (name, apart)


@pytest.mark.parametrize(
    ("crop", "ratio", "height", "width"),
    [
        ((1, 1), (5.6, 6), 28, 28),  # too wide to fit: full width, and an odd number of rows left over
        ((1, 1), (0.1, 0.15), 28, 28),  # too tall
        ((1, 1), (0.1, 0.15), 33, 90),
        ((2, 2), (3 / 4, 4 / 3), 28, 30),  # larger than the image, which has an admissible ratio: all of it
    ],
)
def test_when_nothing_fits_the_largest_centred_box_is_taken(crop, ratio, height, width):
    boxes = A.draw_boxes(View(crop=crop, ratio=ratio, flip=0.5), height, width, 20, seeded())
    top, left, h, w = RandomResizedCrop.get_params(torch.empty(1, height, width), crop, ratio)
    expected = torch.tensor([left, top, w, h]).double().expand(20, 4)
    torch.testing.assert_close(in_pixels(boxes, height, width), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
def test_boxes_say_which_crops_are_flipped(flip):
    boxes = A.draw_boxes(View(flip=flip), 28, 28, COUNT, seeded())
    share = (boxes[:, 0] > boxes[:, 2]).double().mean()
    assert abs(share - flip) <= 4 * (flip * (1 - flip) / COUNT) ** 0.5
    assert bool((boxes[:, 1] < boxes[:, 3]).all())


# --- whole batches


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    ("channels", "height", "width", "size"), [(1, 28, 28, 28), (3, 28, 28, 40), (3, 28, 19, 16), (1, 18, 28, 24)]
)
def test_a_batch_of_views(name, channels, height, width, size):
    given = batch(raw(channels, height, width))
    images, state = given.images.clone(), torch.get_rng_state()
    views = A.augment(given, RECIPES[name], size, seeded())
    again, other = (A.augment(given, RECIPES[name], size, seeded(s)) for s in (0, 1))

    assert torch.equal(given.images, images)
    assert torch.equal(torch.get_rng_state(), state), "numbers come from the generator alone"
    assert views.boxes.shape == (len(RECIPES[name]), 6, 4)
    assert views.target is given.target
    assert views.row is given.row
    assert views.prior is given.prior
    for x, same, different in zip(views.x, again.x, other.x, strict=True):
        assert x.shape == (6, channels, size, size)
        assert x.dtype == torch.float32
        assert x.min() >= 0
        assert x.max() <= 1
        assert torch.equal(x, same)
        assert not torch.equal(x, different)
    assert torch.equal(views.boxes, again.boxes)
    assert not torch.equal(views.x[0], views.x[1])


def test_the_boxes_are_those_of_the_crops():
    given, view = batch(raw(3, 28, 22)), replace(PLAIN, crop=(0.2, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5)
    views = A.augment(given, (view, view), 20, seeded())
    assert 0 < (views.boxes[..., 0] > views.boxes[..., 2]).sum() < 12, "some are flipped, others not"
    for x, boxes in zip(views.x, views.boxes, strict=True):
        for image, result, flipped, box in zip(
            given.images, x, boxes[:, 0] > boxes[:, 2], in_pixels(boxes, 28, 22).round().int().tolist(), strict=True
        ):
            left, top, w, h = box
            expected = V.resized_crop(image.float() / 255, top, left, h, w, [20, 20], antialias=False)
            close(result, V.horizontal_flip(expected) if flipped else expected)


@pytest.mark.parametrize(
    "on",
    [
        {"crop": (0.2, 1.0)},
        {"jitter": 1, "brightness": 0.4},
        {"jitter": 1, "contrast": 0.4},
        {"jitter": 1, "saturation": 0.4},
        {"jitter": 1, "hue": 0.1},
        {"blur": 1},
    ],
    ids=str,
)
def test_each_image_draws_numbers_of_its_own(on):
    one = raw(3)[:1].repeat(6, 1, 1, 1)
    x = A.augment(batch(one), (replace(PLAIN, **on),), 28, seeded()).x[0]
    apart = (x.unsqueeze(0) - x.unsqueeze(1)).abs().amax((2, 3, 4))
    assert bool((apart + torch.eye(6) > 1e-4).all())


def test_probability_zero_does_nothing():
    x = photos()
    full = View(crop=(1, 1), jitter=0, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, grey=0)
    assert torch.equal(A.recolour_(x.clone(), full, seeded()), x)
    rarely = replace(full, blur=1e-9, solarise=1e-9, grey=1e-9)  # a batch in which none is chosen
    assert torch.equal(A.recolour_(x.clone(), rarely, seeded()), x)
    close(A.recolour_(x.clone(), replace(PLAIN, jitter=1), seeded()), x)


@pytest.mark.parametrize("channels", [1, 3])
def test_probability_one_does_it_to_every_image(channels):
    x = photos(channels)
    close(A.recolour_(x.clone(), replace(PLAIN, solarise=1), seeded()), V.solarize(x, 0.5))
    grey = A.recolour_(x.clone(), replace(PLAIN, grey=1), seeded())
    close(grey, V.rgb_to_grayscale(x, num_output_channels=3) if channels == 3 else x)
    for on in ({"blur": 1}, {"jitter": 1, "brightness": 0.4}, {"jitter": 1, "contrast": 0.4}):
        changed = A.recolour_(x.clone(), replace(PLAIN, **on), seeded())
        assert bool(((changed - x).abs().amax((1, 2, 3)) > 1e-4).all()), on


# --- statistics of the recipe

FIELD = torch.tensor([0.4, 0.6, 0.6]).view(3, 1, 1).expand(3, 4, 4)  # of hue 1/2
HALVES = torch.tensor([0.4, 0.6]).repeat_interleave(2).expand(3, 4, 4)
POINT = torch.zeros(3, 5, 5).index_put((torch.arange(3), torch.tensor(2), torch.tensor(2)), torch.tensor(1.0))


def contrast_of(x: Tensor) -> Tensor:
    return (x.amax((1, 2, 3)) - x.amin((1, 2, 3))) / 0.2


def hues(x: Tensor) -> Tensor:
    return torch.tensor([colorsys.rgb_to_hsv(*pixel)[0] for pixel in x[:, :, 0, 0].tolist()])


def share_is(happened: Tensor, probability: float) -> None:
    """Within four standard errors."""
    share = happened.double().mean()
    assert abs(share - probability) <= 4 * (probability * (1 - probability) / len(happened)) ** 0.5


@pytest.mark.parametrize("strength", [0.2, 0.8])
@pytest.mark.parametrize(
    ("name", "image", "amount", "middle", "scale"),
    [
        ("brightness", FIELD.amin(0).expand(3, 4, 4), lambda x: x[:, 0, 0, 0] / 0.4, 1, 1),
        ("contrast", HALVES, contrast_of, 1, 1),
        ("saturation", FIELD, contrast_of, 1, 1),
        ("hue", FIELD, hues, 0.5, 0.25),
    ],
    ids=["brightness", "contrast", "saturation", "hue"],
)
def test_jitter_follows_the_recipe(name, image, amount, middle, scale, strength):
    view = replace(PLAIN, jitter=0.8, **{name: strength * scale})
    found = amount(A.recolour_(image.repeat(COUNT, 1, 1, 1), view, seeded()))
    changed = found[(found - middle).abs() > 1e-5]
    share_is((found - middle).abs() > 1e-5, 0.8)
    uniform = middle + strength * scale * (2 * QUANTILES - 1)
    torch.testing.assert_close(changed.quantile(QUANTILES), uniform, rtol=0, atol=0.06 * strength * scale)
    assert (changed - middle).abs().max() <= strength * scale + 1e-4


@pytest.mark.parametrize("probability", [0.2, 0.5])
@pytest.mark.parametrize("name", ["grey", "blur", "solarise"])
def test_the_rest_happens_as_often_as_the_recipe_says(name, probability):
    image = {"grey": FIELD, "blur": POINT, "solarise": HALVES}[name]
    x = image.repeat(COUNT, 1, 1, 1)
    changed = (A.recolour_(x.clone(), replace(PLAIN, **{name: probability}), seeded()) - x).abs().amax((1, 2, 3))
    share_is(changed > 0, probability)


def test_the_width_of_the_blur_is_uniform_from_a_tenth_to_two():
    x = A.recolour_(POINT.repeat(COUNT, 1, 1, 1), replace(PLAIN, blur=1), seeded())
    sigma = 0.1 + 1.9 * QUANTILES
    centre = (1 + 2 * (-1 / (2 * sigma**2)).exp()) ** -2  # of a kernel of three, squared: rows and columns
    torch.testing.assert_close(x[:, 0, 2, 2].quantile(1 - QUANTILES).flip(0), centre.flip(0), rtol=0, atol=0.02)


def test_the_order_of_the_jitter_varies_by_image():
    """Turning the hue changes the grey that saturation blends with: the result says which of the two came first."""
    x = torch.tensor([0.7, 0.5, 0.3]).view(1, 3, 1, 1).repeat(1000, 1, 1, 1)
    result = A.recolour_(x.clone(), replace(PLAIN, jitter=1, saturation=0.4, hue=0.2), seeded())
    factor = (result.amax((1, 2, 3)) - result.amin((1, 2, 3))) / 0.4
    shift = hues(result) - hues(x[:1])
    saturation_first = A.adjust_hue(A.adjust_saturation(x, factor), shift)
    hue_first = A.adjust_saturation(A.adjust_hue(x, shift), factor)
    tells = (saturation_first - hue_first).abs().amax((1, 2, 3)) > 1e-3
    first, second = ((result - o).abs().amax((1, 2, 3)) < 1e-4 for o in (saturation_first, hue_first))
    assert bool((first | second).all())
    assert tells.sum() > 800
    share_is(first[tells], 0.5)
    assert bool((first ^ second)[tells].all())


def test_the_views_take_no_pixel_from_outside_of_their_box():
    """White is everywhere but in the box: none of it comes in."""
    pixels = np.full((1, 28, 28, 1), 255, dtype=np.uint8)
    pixels[:, 6:17, 9:21] = 0
    box = torch.tensor([[9 / 28, 6 / 28, 21 / 28, 17 / 28]])
    assert A.crop(to_tensor(pixels), box, 40).abs().max() < 1e-5
