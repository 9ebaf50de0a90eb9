"""Feature extraction against plain forward passes, from image sets and from sources decoded on the way."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms.v2 import functional as V

from glf.data.batches import to_tensor
from glf.data.decode import square
from glf.data.files import Files
from glf.data.images import ImageSet
from glf.data.sources import find_source, load_images
from glf.nn.backbone import Backbone
from glf.nn.features import Encoder, SourceFeatures, encode, extract, extract_source, fingerprint, resize_to
from machine import peak
from photos import BROKEN, write_photos

SIZE = 32


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load_images("fashion-mini", "test").select(np.arange(20))


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


# --- image sets


@pytest.mark.parametrize("batch_size", [7, 20, 64])
def test_features_are_those_of_a_forward_pass(images, tmp_path, batch_size):
    backbone = build()
    features = extract(backbone, images, cache=tmp_path / "deep" / "cache", batch_size=batch_size)
    assert features.dtype == np.float32
    assert isinstance(features, np.memmap)
    np.testing.assert_allclose(features, direct(backbone, images), rtol=1e-5, atol=1e-6)


def test_features_of_some_images(images):
    backbone, some = build(), np.array([3, 17, 4])
    features = np.concatenate(list(encode(backbone, images, indices=some, batch_size=2)))
    np.testing.assert_allclose(features, direct(backbone, images)[some], rtol=1e-5, atol=1e-6)


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
    features = extract(backbone, images, cache=tmp_path)
    assert not np.array_equal(features, stale)
    np.testing.assert_allclose(features, direct(backbone, images), rtol=1e-5, atol=1e-6)


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
        features = extract(backbone, source, cache=tmp_path, size=size)
        np.testing.assert_allclose(features, direct(backbone, source, size or 28), rtol=1e-5, atol=1e-5)
        assert len(list(tmp_path.iterdir())) == n
    extract(backbone, images, cache=tmp_path, label="other")
    assert len(list(tmp_path.glob("other-*"))) == 1
    structure = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())
    assert len({fingerprint(encoder) for encoder in structure}) == 2


@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_returns_to_its_mode(images, tmp_path, training):
    backbone = build().train(training)
    statistics = backbone.body.bn1.running_mean.clone()
    extract(backbone, images, cache=tmp_path)
    assert backbone.training is backbone.body.bn1.training is training
    assert torch.equal(backbone.body.bn1.running_mean, statistics)
    backbone.body.conv1.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        extract(backbone, images, cache=tmp_path)
    assert backbone.training is backbone.body.bn1.training is training


def test_gradients_are_off_for_the_encoder_only(images):
    seen = []
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 2))
    encoder.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    for _ in encode(encoder, images, batch_size=10):
        seen.append(torch.is_grad_enabled())
    assert seen == [False, True, False, True]


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
def test_images_are_resized_or_cropped_to_the_encoder(height, width, size, margin):
    x = torch.rand(2, 3, height, width)
    fitted = resize_to(x, size)
    if margin is None:
        expected = V.resize(x, [size, size], antialias=True)
    else:
        expected = x[..., margin : margin + (size or height), margin : margin + (size or width)]
    torch.testing.assert_close(fitted, expected)


# --- sources, decoded on the way


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


class Mean(nn.Module):
    """A quick encoder that counts the images it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.seen = nn.AdaptiveAvgPool2d(4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return self.pool(x).flatten(1)


def of_folder(
    folder: Path | str, cache: Path, module: nn.Module | None = None, size: int | None = SIZE
) -> SourceFeatures:
    encoder = Encoder("mean", module or Mean(), size, 3)
    return extract_source(encoder, find_source(str(folder), "all"), cache=cache, batch_size=4)


def test_features_of_a_source_are_those_of_the_loaded_images(folder, tmp_path):
    torch.manual_seed(0)
    backbone = Backbone("small_resnet", image_size=SIZE)
    found = of_folder(folder, tmp_path / "a", backbone)
    images = load_images(str(folder), size=SIZE, store="decode")
    expected = extract(backbone, images, cache=tmp_path / "b", size=SIZE)
    np.testing.assert_allclose(found.features, expected, rtol=1e-4, atol=1e-5)
    assert len(found.paths) == 24
    assert all(Path(path).is_file() for path in found.paths)
    assert [Path(one.name).relative_to(folder).as_posix() for one in found.skipped] == list(BROKEN)
    assert found.paths == sorted(found.paths)


def test_the_second_time_nothing_is_encoded(folder, tmp_path):
    first = of_folder(folder, tmp_path)
    again = Mean()
    second = of_folder(folder, tmp_path, again)
    assert again.seen == 0
    assert np.array_equal(first.features, second.features)
    assert first.skipped == second.skipped


def small_squares(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{i:03}.png" for i in range(count)]
    for path, pixels in zip(paths, load_images("fashion-mini", "test").pixels[:count, :, :, 0], strict=True):
        Image.fromarray(pixels).save(path)
    return paths


def test_the_features_of_an_image_do_not_depend_on_the_others(tmp_path):
    """A small square keeps its side, whatever is next to it; of the rest, the centre of a square with a margin."""
    paths = small_squares(tmp_path / "set", 10)
    alone = of_folder(tmp_path / "set", tmp_path / "a", size=28).features.copy()
    for path in paths[4:7]:
        with Image.open(path) as image:
            image.resize((60, 40)).save(path)
    with Image.open(paths[9]) as image:
        image.resize((20, 20)).save(paths[9])
    encoder = Mean()
    found = of_folder(tmp_path / "set", tmp_path / "a", encoder, size=28).features
    assert encoder.seen == 10
    kept = [0, 1, 2, 3, 7, 8]
    assert np.array_equal(found[kept], alone[kept])
    (tmp_path / "sorted").mkdir()
    for path in (*paths[4:7], paths[9]):
        path.rename(tmp_path / "sorted" / path.name)
    others = of_folder(tmp_path / "sorted", tmp_path / "a", size=28).features
    assert np.array_equal(found[[4, 5, 6, 9]], others)
    pixels = square(np.asarray(Image.open(tmp_path / "sorted" / "005.png"))[..., None], 32)[2:30, 2:30]
    expected = Mean()(torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255).numpy()
    np.testing.assert_allclose(others[1].reshape(3, 16), np.repeat(expected, 3, 0), atol=1e-6)


def test_an_array(tmp_path):
    images = load_images("fashion-mini")
    np.save(tmp_path / "few.npy", images.pixels[:50])
    found = of_folder(tmp_path / "few.npy", tmp_path / "cache", size=28)
    assert found.paths[:3] == ["0", "1", "2"]
    grey = torch.from_numpy(images.pixels[:50]).permute(0, 3, 1, 2).float() / 255
    expected = Mean()(grey.expand(-1, 3, -1, -1))  # in all channels of the encoder
    np.testing.assert_allclose(found.features, expected, atol=1e-6)


def test_a_file_that_could_not_be_read_is_tried_again(folder, tmp_path, monkeypatch):
    read = Files.read
    first = (folder / "boot" / "000.jpg").as_posix()

    def failing(self: Files, i: int) -> bytes:
        if self.name(i) == "boot/000.jpg":
            raise OSError("the network is gone")
        return read(self, i)

    source = find_source(str(folder), "all")
    with monkeypatch.context() as patch:
        patch.setattr(Files, "read", failing)
        found = extract_source(Encoder("mean", Mean(), SIZE, 3), source, cache=tmp_path)
    assert first not in found.paths
    assert any("cannot be read: the network is gone" in one.why for one in found.skipped)
    found = extract_source(Encoder("mean", Mean(), SIZE, 3), source, cache=tmp_path)
    assert first in found.paths


def test_mostly_bad_files_are_an_error_that_names_some(tmp_path):
    write_photos(tmp_path / "set", count=2)
    with pytest.raises(
        ValueError, match=r"(?s)more than half of the 5 image files in .*set are bad: look at these first: "
    ) as error:
        of_folder(tmp_path / "set", tmp_path / "cache")
    assert "empty.png: empty file" in str(error.value)


def test_colour_for_an_encoder_of_grey(folder, tmp_path):
    source = find_source(str(folder), "all")
    with pytest.raises(ValueError, match="in colour, and grey-run was trained on grey ones: use a backbone for colour"):
        extract_source(Encoder("grey-run", Mean(), SIZE, 1), source, cache=tmp_path)


def test_everything_below_a_folder_counts_whatever_it_is_called(tmp_path):
    small_squares(tmp_path / "train", 3)
    small_squares(tmp_path / "other", 2)
    assert len(load_images(str(tmp_path))) == 3, "training takes what is called train"
    assert len(find_source(str(tmp_path), "all")) == 5


def test_memory_does_not_grow_with_the_images(tmp_path):
    """Photos of 1 MB decoded; only a batch and what the threads hold are in memory at a time."""
    (tmp_path / "set").mkdir()
    pixels = load_images("fashion-mini", "test").pixels[:3, :, :, 0].transpose(1, 2, 0)
    Image.fromarray(pixels).resize((600, 600)).save(tmp_path / "set" / "000.jpg")
    for i in range(1, 400):
        os.link(tmp_path / "set" / "000.jpg", tmp_path / "set" / f"{i:03}.jpg")
    of_folder(write_photos(tmp_path / "before"), tmp_path / "cache")  # whatever the first call brings into memory
    with peak() as used:
        found = of_folder(tmp_path / "set", tmp_path / "cache", size=224)
    assert len(found.features) == 400
    assert used.bytes < 250e6 < 400 * 600 * 600 * 3
