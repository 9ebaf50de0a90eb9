"""The extractor against plain forward passes; its cache, and what becomes of it when something fails."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as V

from glf.data.batches import to_tensor
from glf.data.images import ImageSet
from glf.data.sources import load
from glf.nn.backbone import Backbone
from glf.nn.features import encode, extract, fingerprint, resize_to


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load("fashion-mini", "test").select(np.arange(20))


def build(seed: int = 0, **options: object) -> Backbone:
    torch.manual_seed(seed)
    return Backbone("small_resnet", channels=1, image_size=28, **options)


class Counted:
    """How often a module was called."""

    def __init__(self, module: nn.Module) -> None:
        self.calls = 0
        module.register_forward_hook(self.count)

    def count(self, *_: object) -> None:
        self.calls += 1


def direct(backbone: Backbone, images: ImageSet, size: int = 28) -> np.ndarray:
    x = to_tensor(images.pixels).float() / 255
    with torch.no_grad():
        return backbone.eval()(x if size == 28 else V.resize(x, [size, size], antialias=True)).numpy()


@pytest.mark.parametrize("batch_size", [7, 20, 64])
def test_rows_are_those_of_a_forward_pass(images, tmp_path, batch_size):
    backbone = build()
    rows = extract(backbone, images, cache=tmp_path / "deep" / "cache", batch_size=batch_size)
    assert rows.dtype == np.float32
    assert isinstance(rows, np.memmap)
    np.testing.assert_allclose(rows, direct(backbone, images), rtol=1e-5, atol=1e-6)


def test_some_rows(images):
    backbone, some = build(), np.array([3, 17, 4])
    rows = np.concatenate(list(encode(backbone, images, rows=some, batch_size=2)))
    np.testing.assert_allclose(rows, direct(backbone, images)[some], rtol=1e-5, atol=1e-6)


def test_the_second_time_they_are_read(images, tmp_path):
    backbone = build()
    counted = Counted(backbone)
    first = extract(backbone, images, cache=tmp_path, batch_size=10)
    assert counted.calls == 2
    again = extract(backbone, images, cache=tmp_path, batch_size=10)
    assert counted.calls == 2
    assert np.array_equal(first, again)
    equal = build()
    equal.load_state_dict(backbone.state_dict())
    counted = Counted(equal)
    extract(equal, images, cache=tmp_path)
    assert counted.calls == 0, "the same weights in another object"
    assert len(list(tmp_path.iterdir())) == 1


def changed_weight(backbone: Backbone) -> None:
    next(iter(backbone.body.parameters())).data[0, 0, 0, 0] += 1e-3


def changed_statistics(backbone: Backbone) -> None:
    backbone.body.bn1.running_mean[0] += 1e-3


def changed_mean(backbone: Backbone) -> None:
    backbone.mean += 1e-3


def changed_std(backbone: Backbone) -> None:
    backbone.std += 1e-3


@pytest.mark.parametrize("change", [changed_weight, changed_statistics, changed_mean, changed_std])
def test_another_encoder_is_another_key(images, tmp_path, change):
    backbone = build()
    before = fingerprint(backbone)
    stale = np.array(extract(backbone, images, cache=tmp_path))
    change(backbone)
    assert fingerprint(backbone) != before
    rows = extract(backbone, images, cache=tmp_path)
    assert not np.array_equal(rows, stale)
    np.testing.assert_allclose(rows, direct(backbone, images), rtol=1e-5, atol=1e-6)


def test_other_images_sizes_and_labels_are_other_keys(images, tmp_path):
    backbone = build()
    others = {
        "order": (images.select(np.arange(20)[::-1]), None),
        "fewer": (images.select(np.arange(19)), None),
        "size": (images, 20),
        "size again": (images, 36),
    }
    extract(backbone, images, cache=tmp_path)
    for n, (source, size) in enumerate(others.values(), start=2):
        rows = extract(backbone, source, cache=tmp_path, size=size)
        np.testing.assert_allclose(rows, direct(backbone, source, size or 28), rtol=1e-5, atol=1e-5)
        assert len(list(tmp_path.iterdir())) == n
    extract(backbone, images, cache=tmp_path, label="other")
    assert len(list(tmp_path.glob("other-*.npy"))) == 1
    structure = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())
    assert len({fingerprint(encoder) for encoder in structure}) == 2


@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_is_left_in_its_mode(images, tmp_path, training):
    backbone = build().train(training)
    statistics = backbone.body.bn1.running_mean.clone()
    extract(backbone, images, cache=tmp_path)
    assert backbone.training is backbone.body.bn1.training is training
    assert torch.equal(backbone.body.bn1.running_mean, statistics)
    backbone.body.conv1.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        extract(backbone, images, cache=tmp_path)
    assert backbone.training is backbone.body.bn1.training is training


def test_gradients_are_off_for_the_encoder_alone(images):
    seen = []
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 2))
    encoder.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    for _ in encode(encoder, images, batch_size=10):
        seen.append(torch.is_grad_enabled())
    assert seen == [False, True, False, True]


class Breaks(nn.Module):
    """Good for one batch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2 and self.how == "interrupt":
            raise KeyboardInterrupt
        return x.flatten(1) + (float(self.how) if self.calls == 2 else 0)


@pytest.mark.parametrize(("how", "error"), [("nan", ValueError), ("inf", ValueError), ("interrupt", KeyboardInterrupt)])
def test_what_fails_half_way_leaves_no_file(images, tmp_path, how, error):
    encoder = Breaks(how)
    with pytest.raises(error):
        extract(encoder, images, cache=tmp_path, batch_size=10)
    assert encoder.calls == 2
    assert list(tmp_path.iterdir()) == []
    rows = extract(encoder, images, cache=tmp_path, batch_size=10)
    assert np.array_equal(rows, images.pixels.reshape(20, -1).astype(np.float32) / 255)


@pytest.mark.parametrize(
    ("height", "width", "size", "margin"),
    [
        (28, 28, 28, 0),
        (28, 20, None, 0),
        (32, 32, 28, 2),  # 8/7 of 28: stored with a margin
        (64, 64, 56, 4),
        (256, 256, 224, 16),
        (29, 29, 25, 2),  # 28.6, rounded; the odd pixel is below and to the right
        (32, 32, 24, None),
        (32, 40, 28, None),  # not square
        (28, 28, 40, None),
    ],
)
def test_images_fit_the_encoder(height, width, size, margin):
    x = torch.rand(2, 3, height, width)
    fitted = resize_to(x, size)
    if margin is None:
        expected = V.resize(x, [size, size], antialias=True)
    else:
        expected = x[..., margin : margin + (size or height), margin : margin + (size or width)]
    torch.testing.assert_close(fitted, expected)
