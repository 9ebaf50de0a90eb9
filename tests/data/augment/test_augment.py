"""Whole views: both forms against torchvision with the same parameters, and the frequencies of the policy."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms.v2 import functional as V

from glf.data.augment import augment as A
from glf.data.augment import resampling
from glf.data.augment.policies import POLICIES, ViewPolicy
from pictures import COUNT, PLAIN, batch, close, in_pixels, photos, raw, seeded, unclamped

ADJUST = (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation, V.adjust_hue)
of_both_forms = pytest.mark.parametrize("form", ["fused", "exact"])


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Several threads are slower on tensors this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def cropped(image: Tensor, box: Tensor, flipped: bool, size: int) -> Tensor:
    """From 64 px on, a CPU crops bytes to bytes."""
    left, top, w, h = box.round().int().tolist()
    x = V.resized_crop(image if size >= 64 else image.float(), top, left, h, w, [size, size], antialias=True) / 255
    return V.horizontal_flip(x) if flipped else x


def blurred(x: Tensor, sigma: float) -> Tensor:
    side = 2 * max(1, x.shape[-1] // 20) + 1
    return V.gaussian_blur(x, [side, side], [sigma, sigma]) if sigma else x


@of_both_forms
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("channels", "size"), [(3, 28), (3, 44), (1, 17), (3, 70)])
def test_a_view_equals_torchvisions_with_the_same_parameters(name, channels, size, form):
    """exact: torchvision's functions one after the other. fused: the same without clamping in between."""
    images, view = raw(channels, 28, 24), replace(POLICIES[name][-1], grey=0.4, blur=0.6, solarise=0.4, side=1)
    drawn = A.draw_view(view, 28, 24, 6, seeded())
    ours = getattr(A, form)(resampling.cropper_type(images, size)(images), drawn, size)
    boxes, flipped = in_pixels(drawn.boxes, 28, 24), drawn.boxes[:, 0] > drawn.boxes[:, 2]
    for i, image in enumerate(images):
        x = cropped(image, boxes[i], bool(flipped[i]), size)
        amount, order, grey = drawn.amount[i].tolist(), drawn.order[i].tolist(), bool(drawn.grey[i])
        if form == "exact":
            for kind in order:
                x = ADJUST[kind](x, amount[kind])
            x = blurred(V.rgb_to_grayscale(x, channels) if grey else x, float(drawn.sigma[i]))
        else:
            x = torch.from_numpy(np.array(unclamped(x.double().numpy(), amount, order, grey)))
            x = blurred(x, float(drawn.sigma[i])).clamp(0, 1).float()
        if drawn.solarised[i]:  # discontinuous at one half: values within rounding of it may fall on either side
            near = (x - 0.5).abs() < 1e-5
            x, ours[i] = V.solarize(x, 0.5).masked_fill(near, 0), ours[i].masked_fill(near, 0)
        close(ours[i], x)


@of_both_forms
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    ("channels", "height", "width", "size"), [(1, 28, 28, 28), (3, 28, 28, 40), (3, 28, 19, 16), (1, 18, 28, 24)]
)
def test_a_batch_of_views(name, channels, height, width, size, form):
    policy = POLICIES[name]
    given = batch(raw(channels, height, width))
    images, state = given.images.clone(), torch.get_rng_state()
    views = A.augment(given, policy, size, seeded(), form)
    again, other = (A.augment(given, policy, size, seeded(s), form) for s in (0, 1))

    assert torch.equal(given.images, images)
    assert torch.equal(torch.get_rng_state(), state), "all random numbers come from the generator"
    assert views.boxes.shape == (len(policy), 6, 4)
    assert views.target is given.target
    assert views.indices is given.indices
    assert views.prior is given.prior
    for view, x, same, different in zip(policy, views.x, again.x, other.x, strict=True):
        assert x.shape == (6, channels, *(round(view.side * size),) * 2)
        assert x.dtype == torch.float32
        assert x.min() >= 0
        assert x.max() <= 1
        assert torch.equal(x, same)
        assert not torch.equal(x, different)
    assert torch.equal(views.boxes, again.boxes)
    assert all(not torch.equal(views.x[0], view) for view in views.x[1:])


def test_local_crops_are_small_and_come_last():
    views = A.augment(batch(raw(3)), POLICIES["multicrop"], 32, seeded())
    assert [x.shape[-1] for x in views.x] == [32, 32, *[18] * 6]
    area = ((views.boxes[..., 2] - views.boxes[..., 0]) * (views.boxes[..., 3] - views.boxes[..., 1])).abs()
    assert area[2:].max() < 0.2
    assert area[:2].max() > 0.3


def test_both_forms_use_the_same_parameters():
    """Runs that differ only in the form see the same boxes and the same colour parameters."""
    fused, exact = (A.augment(batch(raw(3)), POLICIES["symmetric"], 28, seeded(), form) for form in ("fused", "exact"))
    assert torch.equal(fused.boxes, exact.boxes)
    apart = torch.stack([(a - b).abs().mean() for a, b in zip(fused.x, exact.x, strict=True)])
    assert 1e-4 < apart.max() < 0.1


def test_autocast_does_not_apply_to_augmentation():
    given = batch(raw(3))
    expected = A.augment(given, POLICIES["symmetric"], 28, seeded()).x[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(A.augment(given, POLICIES["symmetric"], 28, seeded()).x[0], expected)


def test_the_returned_boxes_are_those_of_the_crops():
    given, view = batch(raw(3, 28, 22)), replace(PLAIN, crop_area=(0.2, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5)
    views = A.augment(given, (view, view), 20, seeded())
    assert 0 < (views.boxes[..., 0] > views.boxes[..., 2]).sum() < 12, "some are flipped, some are not"
    for x, boxes in zip(views.x, views.boxes, strict=True):
        for image, result, flipped, box in zip(
            given.images, x, boxes[:, 0] > boxes[:, 2], in_pixels(boxes, 28, 22).round().int().tolist(), strict=True
        ):
            left, top, w, h = box
            expected = V.resized_crop(image.float() / 255, top, left, h, w, [20, 20], antialias=True)
            close(result, V.horizontal_flip(expected) if flipped else expected)


@pytest.mark.parametrize(
    "on",
    [
        {"crop_area": (0.2, 1.0)},
        {"jitter": 1, "brightness": 0.4},
        {"jitter": 1, "contrast": 0.4},
        {"jitter": 1, "saturation": 0.4},
        {"jitter": 1, "hue": 0.1},
        {"blur": 1},
    ],
    ids=str,
)
@of_both_forms
def test_each_image_has_its_own_parameters(on, form):
    one = raw(3)[:1].repeat(6, 1, 1, 1)
    x = A.augment(batch(one), (replace(PLAIN, **on),), 28, seeded(), form).x[0]
    apart = (x.unsqueeze(0) - x.unsqueeze(1)).abs().amax((2, 3, 4))
    assert bool((apart + torch.eye(6) > 1e-4).all())


@of_both_forms
def test_probability_zero_does_nothing(form):
    given, x = batch(raw(3)), photos()
    full = ViewPolicy(
        crop_area=(1, 1), ratio=(1, 1), flip=0, jitter=0, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, grey=0
    )
    rarely = replace(full, blur=1e-9, solarise=1e-9, grey=1e-9)  # no image of the batch is chosen
    for view in (full, rarely, replace(PLAIN, jitter=1)):
        close(A.augment(given, (view,), 28, seeded(), form).x[0], x)


@of_both_forms
@pytest.mark.parametrize("channels", [1, 3])
def test_probability_one_applies_to_every_image(channels, form):
    given, x = batch(raw(channels)), photos(channels)

    def only(**on: float) -> Tensor:
        return A.augment(given, (replace(PLAIN, **on),), 28, seeded(), form).x[0]

    close(only(solarise=1), V.solarize(x, 0.5))
    close(only(grey=1), V.rgb_to_grayscale(x, num_output_channels=channels))
    for on in ({"blur": 1}, {"jitter": 1, "brightness": 0.4}, {"jitter": 1, "contrast": 0.4}):
        assert bool(((only(**on) - x).abs().amax((1, 2, 3)) > 1e-4).all()), on


@pytest.mark.parametrize("probability", [0.2, 0.5])
@pytest.mark.parametrize("name", ["flip", "grey", "blur", "solarise"])
def test_frequencies_are_those_of_the_policy(name, probability):
    drawn = A.draw_view(replace(PLAIN, **{name: probability}), 28, 28, COUNT, seeded())
    happened = {
        "flip": drawn.boxes[:, 0] > drawn.boxes[:, 2],
        "grey": drawn.grey,
        "blur": torch.zeros(COUNT) if drawn.sigma is None else drawn.sigma > 0,
        "solarise": drawn.solarised,
    }
    for what, chosen in happened.items():
        expected = probability if what == name else 0
        assert abs(chosen.double().mean() - expected) <= 4 * math.sqrt(expected * (1 - expected) / COUNT), what


def test_the_sigma_of_the_blur_is_uniform_from_0_1_to_2():
    sigma = A.draw_view(replace(PLAIN, blur=1), 28, 28, COUNT, seeded()).sigma
    at = torch.tensor([0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0])
    torch.testing.assert_close(sigma.quantile(at), 0.1 + 1.9 * at, rtol=0, atol=0.06)


@of_both_forms
@pytest.mark.parametrize("size", [20, 80])
def test_double_precision_works_at_every_size(size, form):
    """Lightning's 64-true makes float64 the default dtype during a step."""
    given = batch(raw(3, 28, 24))
    torch.set_default_dtype(torch.float64)
    try:
        x = A.augment(given, POLICIES["symmetric"], size, seeded(), form).x[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert x.dtype == torch.float64
    assert 0 <= x.min() <= x.max() <= 1


@of_both_forms
def test_views_of_one_pixel(form):
    x = A.augment(batch(raw(3)), POLICIES["multicrop"], 2, seeded(), form).x
    assert [view.shape[-1] for view in x] == [2, 2, *[1] * 6]


class Blocking(TorchDispatchMode):
    """Counts copies to another device that block."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu":
            self.count += kwargs.get("device") == torch.device("meta") and not kwargs.get("non_blocking")
        return func(*args, **kwargs)


@of_both_forms
@pytest.mark.parametrize("view", [POLICIES["symmetric"][0], POLICIES["asymmetric"][1]], ids=["blur", "solarise"])
def test_no_copy_to_the_device_blocks(view, form):
    drawn, cropper = A.draw_view(view, 28, 28, 6, seeded()), resampling.MatrixCropper(raw(3).to("meta"))
    with Blocking() as seen:
        torch.zeros(2).to("meta")
        getattr(A, form)(cropper, drawn, 20)
    assert seen.count == 1, "only the copy that shows that the counter works"


@of_both_forms
@pytest.mark.parametrize("view", [POLICIES["symmetric"][0], POLICIES["asymmetric"][1]], ids=["blur", "solarise"])
def test_nothing_is_copied_back_from_the_device(view, form):
    """Tensors of the meta device have no values, so reading one, which would make a GPU wait, fails."""
    drawn = A.draw_view(view, 28, 28, 6, seeded())
    x = getattr(A, form)(resampling.MatrixCropper(raw(3).to("meta")), drawn, 20)
    assert x.device.type == "meta"
    assert x.shape == (6, 3, 20, 20)
    with pytest.raises(RuntimeError, match="meta"):
        x.sum().item()
