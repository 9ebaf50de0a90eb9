"""Boxes, crops and blur against torchvision, image by image."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as V

from glf.data.augment import resampling as C
from glf.data.augment.policies import ViewPolicy
from glf.data.batches import to_tensor
from pictures import COUNT, close, in_pixels, photos, raw, seeded

QUANTILES = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])


def boxes_and_pixels(height: int, width: int, flip: bool) -> tuple[Tensor, list[tuple[int, int, int, int]]]:
    pixels = [  # left, top, width, height
        (0, 0, width, height), (3, 5, 11, 8), (0, 2, 1, 9), (4, 0, 9, 1), (width - 7, height - 6, 7, 6), (2, 2, 5, 12),
    ]  # fmt: skip
    edges = torch.tensor([(left, top, left + w, top + h) for left, top, w, h in pixels])
    boxes = edges / torch.tensor([width, height, width, height])
    return (boxes[:, [2, 1, 0, 3]] if flip else boxes), pixels


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("size", [5, 16, 28, 45])
@pytest.mark.parametrize(("channels", "height", "width"), [(1, 28, 28), (3, 28, 20), (3, 17, 28)])
@pytest.mark.parametrize("cropper", [C.MatrixCropper, C.ByteCropper])
def test_crops_equal_torchvisions_with_antialiasing(cropper, channels, height, width, size, flip):
    """MatrixCropper on floats; ByteCropper on bytes, equal to the byte."""
    x, (boxes, pixels) = raw(channels, height, width), boxes_and_pixels(height, width, flip)
    result, mean = cropper(x)(boxes, size)
    for image, ours, (left, top, w, h) in zip(x, result, pixels, strict=True):
        given = image.float() if cropper is C.MatrixCropper else image
        expected = V.resized_crop(given, top, left, h, w, [size, size], antialias=True) / 255
        close(ours, V.horizontal_flip(expected) if flip else expected)
    close(mean, result.mean((2, 3)))


def test_the_croppers_differ_by_rounding_to_bytes():
    x, (boxes, _) = raw(3), boxes_and_pixels(28, 28, True)
    sigma = torch.tensor([0.0, 0.5, 1.0, 2.0, 0.0, 1.5])
    for blur in (None, sigma):
        (by_matrix, m0), (by_bytes, m1) = (cropper(x)(boxes, 70, blur) for cropper in (C.MatrixCropper, C.ByteCropper))
        assert 0 < (by_matrix - by_bytes).abs().max() <= 1.01 / 255  # half a byte per axis
        assert (m0 - m1).abs().max() < 0.2 / 255


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_large_views_on_a_cpu_are_cropped_as_bytes(device):
    images = raw(3).to(device)
    assert C.cropper_type(images, 63) is C.MatrixCropper
    assert C.cropper_type(images, 64) is (C.ByteCropper if device == "cpu" else C.MatrixCropper)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("side", "kernel"), [(28, 3), (39, 3), (40, 5), (60, 7), (240, 25)])
def test_blur_equals_torchvisions(channels, side, kernel):
    x = V.resize(photos(channels), [side, side], antialias=True)
    sigma = torch.tensor([0.1, 0.3, 0.7, 1.0, 1.5, 2.0])
    matrix = C.blur_matrices(sigma, side)
    for blurred in (C.resample(x.permute(0, 2, 1, 3), matrix, matrix), C.blur(x.clone(), sigma)):
        for image, ours, s in zip(x, blurred, sigma.tolist(), strict=True):
            close(ours, V.gaussian_blur(image, [kernel, kernel], [s, s]))


def test_no_blur_is_the_identity():
    assert torch.equal(C.blur_matrices(torch.zeros(2), 9), torch.eye(9).expand(2, 9, 9))
    x = photos()
    assert torch.equal(C.blur(x.clone(), torch.zeros(6)), x)
    some = C.blur(x.clone(), torch.tensor([0, 1.0, 0, 0, 0, 0]))
    assert torch.equal(some[[0, 2, 3, 4, 5]], x[[0, 2, 3, 4, 5]])
    assert not torch.equal(some[1], x[1])


def test_the_mean_colour_is_that_of_the_resampled_image():
    x = raw(3, 28, 20)
    boxes = C.draw_boxes(ViewPolicy(), 28, 20, 6, seeded())
    images, matrices = C.row_major(x), C.crop_matrices(boxes, 28, 20, 13)
    torch.testing.assert_close(
        C.mean_colour(images, *matrices), C.resample(images, *matrices).mean((2, 3)), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_row_major_layout_has_the_same_pixels(channels_last):
    x = raw(3, 28, 20)
    given = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    assert torch.equal(C.row_major(given).permute(0, 2, 1, 3), x.float())
    assert C.row_major(given).is_contiguous()


def test_crops_read_no_pixel_outside_of_their_box():
    """White everywhere but in the box: none of it may leak in, not even through a wide filter."""
    pixels = np.full((1, 28, 28, 1), 255, dtype=np.uint8)
    pixels[:, 6:17, 9:21] = 0
    box = torch.tensor([[9 / 28, 6 / 28, 21 / 28, 17 / 28]])
    for size in (4, 40, 80):
        assert C.cropper_type(to_tensor(pixels), size)(to_tensor(pixels))(box, size)[0].abs().max() < 1e-5


@pytest.mark.parametrize(
    ("crop", "ratio", "height", "width"),
    [
        ((0.2, 1.0), (3 / 4, 4 / 3), 28, 28),
        ((0.2, 1.0), (3 / 4, 4 / 3), 300, 90),  # most tries fail
        ((0.08, 1.0), (3 / 4, 4 / 3), 200, 224),
        ((0.3, 0.5), (0.5, 3.0), 100, 300),
    ],
)
def test_boxes_are_distributed_as_torchvisions(crop, ratio, height, width):
    view = ViewPolicy(crop_area=crop, ratio=ratio)
    box = in_pixels(C.draw_boxes(view, height, width, COUNT, seeded()), height, width)
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
        # Four standard errors of the difference of two means; quantiles of 4,000 values of whole pixels are coarser.
        error = 4 * (ours.var() / COUNT + reference.var() / COUNT).sqrt() + 1e-9
        assert abs(ours.mean() - reference.mean()) <= error, name
        q = QUANTILES.double()
        apart = (ours.quantile(q) - reference.quantile(q)).abs().max() / span
        assert apart < 0.05 + 1 / min(height, width), (name, apart)


@pytest.mark.parametrize(
    ("crop", "ratio", "height", "width"),
    [
        ((1, 1), (5.6, 6), 28, 28),  # too wide to fit: full width, an odd number of pixels left over
        ((1, 1), (0.1, 0.15), 28, 28),  # too tall
        ((1, 1), (0.1, 0.15), 33, 90),
        ((2, 2), (3 / 4, 4 / 3), 28, 30),  # larger than the image, which has an allowed ratio: the whole image
    ],
)
def test_if_nothing_fits_the_largest_centred_box_is_used(crop, ratio, height, width):
    boxes = C.draw_boxes(ViewPolicy(crop_area=crop, ratio=ratio, flip=0.5), height, width, 20, seeded())
    top, left, h, w = RandomResizedCrop.get_params(torch.empty(1, height, width), crop, ratio)
    expected = torch.tensor([left, top, w, h]).double().expand(20, 4)
    torch.testing.assert_close(in_pixels(boxes, height, width), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
def test_boxes_encode_which_crops_are_flipped(flip):
    boxes = C.draw_boxes(ViewPolicy(flip=flip), 28, 28, COUNT, seeded())
    share = (boxes[:, 0] > boxes[:, 2]).double().mean()
    assert abs(share - flip) <= 4 * (flip * (1 - flip) / COUNT) ** 0.5
    assert bool((boxes[:, 1] < boxes[:, 3]).all())
