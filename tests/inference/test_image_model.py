"""glf.load against glf embed, bit for bit, on photos of every kind; and as a torch module."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import glf
from fake_gpu import same_on_gpu
from glf.config.inference import EmbedConfig
from glf.data.sources import load_images
from glf.inference.embedding import embed
from glf.inference.image_model import ImageModel
from glf.nn.backbone import Backbone
from glf.nn.features import SourceFeatures
from glf.nn.weights import save_backbone
from photos import BROKEN, write_photos

LITE = "timm:tf_efficientnet_lite0"  # with its published weights, from the package of the extra `prior`
SIZE = 64


@pytest.fixture(autouse=True)
def _nothing_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cached features may be those of another batch size, which differ in the last bits."""
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Colour and grey JPEGs of several shapes, some turned by EXIF; and PNGs with alpha, 16 bits, a palette."""
    folder = write_photos(tmp_path_factory.mktemp("holiday"), 12)
    for name in BROKEN:
        (folder / name).unlink()
    with Image.open(folder / "boot" / "000.jpg") as image:
        small = image.resize((120, 80))
        alpha = Image.linear_gradient("L").resize(small.size)
        small.putalpha(alpha)
        small.save(folder / "alpha.png")
        small.convert("LA").save(folder / "grey and alpha.png")
        image.convert("P").save(folder / "palette.gif")
        Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257).save(folder / "sixteen.png")
    return folder


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return glf.load(LITE, image_size=SIZE)


def embedded(run: str, data: Path, tmp_path: Path, **settings: Any) -> SourceFeatures:
    return embed(EmbedConfig(run=run, data=str(data), out=tmp_path / "e.npy", **settings))


def same(features: torch.Tensor, expected: np.ndarray) -> None:
    assert features.dtype == torch.float32
    assert np.array_equal(features.numpy(), expected), np.abs(features.numpy() - expected).max()


# --- the same features as glf embed


@pytest.mark.parametrize("batch_size", [5, 128])
def test_features_of_files_are_those_of_embed(photos, tmp_path, batch_size):
    found = embedded(LITE, photos, tmp_path, image_size=SIZE, batch_size=batch_size)
    assert len(found.paths) == 16
    loaded = glf.load(LITE, image_size=SIZE, batch_size=batch_size)
    same(loaded(found.paths), found.features)
    same(loaded([Path(path) for path in found.paths]), found.features)
    same(loaded([Path(path).read_bytes() for path in found.paths]), found.features)
    same(loaded(np.array(found.paths)), found.features)
    same(loaded(path for path in found.paths), found.features)


def test_one_image_gives_one_row(model, photos):
    path = photos / "boot" / "000.jpg"
    with Image.open(path) as opened:
        rows = [model(str(path)), model(path), model([path]), model(path.read_bytes()), model(opened)]
    assert {tuple(row.shape) for row in rows} == {(1, 1280)}
    assert all(torch.equal(row, rows[0]) for row in rows)


def test_pil_images_give_what_their_files_give(model, photos):
    """Of the large JPEG, the file is decoded at a fraction of its size, the PIL image is not."""
    paths = sorted(path for path in photos.rglob("*") if path.is_file())
    opened = [Image.open(path) for path in paths]
    features = model(opened)
    expected = model(paths)
    unlike = [path.name for path, a, b in zip(paths, features, expected, strict=True) if not torch.equal(a, b)]
    reduced = [path.name for path, image in zip(paths, opened, strict=True) if min(image.size) > 4 * 73]
    assert set(unlike) <= set(reduced)
    assert torch.cosine_similarity(features, expected).min() > 0.99
    for image in opened:
        image.close()


def test_a_pil_image_stays_as_it_is(model, photos):
    with Image.open(photos / "coat" / "001.jpg") as image:
        image.load()
        before, exif = image.tobytes(), dict(image.getexif())
        assert exif[274] == 6
        first = model(image)
        assert (image.tobytes(), dict(image.getexif())) == (before, exif)
        torch.testing.assert_close(model([image, image]), first.repeat(2, 1), rtol=1e-4, atol=1e-4)


def test_small_squares_keep_their_size_whatever_is_next_to_them(model, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    pixels = load_images("fashion-mini", "test").pixels[:6, :, :, 0]
    for i, one in enumerate(pixels):
        Image.fromarray(one).resize((60, 60)).save(folder / f"{i}.png")
    found = embedded(LITE, folder, tmp_path, image_size=SIZE)
    alone = model(found.paths)
    same(alone, found.features)
    Image.fromarray(pixels[0]).resize((200, 150)).save(folder / "9.png")
    mixed = embedded(LITE, folder, tmp_path, image_size=SIZE)
    same(model(mixed.paths), mixed.features)
    np.testing.assert_allclose(mixed.features[:6], found.features, rtol=1e-4, atol=1e-4)


def test_arrays_and_tensors_are_those_of_an_npy_file(model, tmp_path):
    rng = np.random.default_rng(0)
    pixels = load_images("fashion-mini", "test").pixels
    pixels = np.concatenate([pixels[:9], pixels[9:18], pixels[18:27]], axis=3)  # colours that differ
    pixels = pixels.repeat(3, 1).repeat(4, 2)[:, : 80 + rng.integers(4)]  # rectangular
    np.save(tmp_path / "a.npy", pixels)
    found = embedded(LITE, tmp_path / "a.npy", tmp_path, image_size=SIZE)
    same(model(pixels), found.features)
    same(model(np.load(tmp_path / "a.npy", mmap_mode="r")), found.features)
    same(model(list(pixels)), found.features)
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    same(model(tensor), found.features)
    for other in (tensor.contiguous(), tensor.contiguous().float() / 255, pixels.astype(np.float32) / 255):
        torch.testing.assert_close(model(other), torch.from_numpy(found.features), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(tensor[3]), torch.from_numpy(found.features[3:4]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(pixels[3]), torch.from_numpy(found.features[3:4]), rtol=1e-4, atol=1e-4)


def test_lists_of_different_kinds_and_sizes(model, photos):
    path = photos / "boot" / "000.jpg"
    grey = torch.rand(1, 30, 50)
    array = np.zeros((20, 20), np.uint8)
    features = model([path, grey, array, path.read_bytes()])
    torch.testing.assert_close(features[0], features[3])
    torch.testing.assert_close(features[1:2], model(grey), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(features[2:3], model(array), rtol=1e-4, atol=1e-4)


# --- encoders


def test_runs_backbone_files_and_pixels(small_run: Callable[..., Path], tmp_path, photos):
    run = small_run()
    few = tmp_path / "few.npy"
    np.save(few, load_images("fashion-mini", "test").pixels[:20])
    loaded = glf.load(run)
    same(loaded(np.load(few)), embedded(str(run), few, tmp_path).features)
    assert (loaded.image_size, loaded.channels, loaded.training) == (28, 1, False)
    same(glf.load("pixels")(np.load(few)), embedded("pixels", few, tmp_path).features)
    found = embedded("pixels", photos, tmp_path)
    same(glf.load("pixels")(found.paths), found.features)
    assert glf.load("pixels")([torch.zeros(1, 8, 8), torch.zeros(3, 9, 9)]).shape == (2, 3072)
    with pytest.raises(ValueError, match=r"000\.jpg is in colour, and the encoder was trained on grey images"):
        loaded(photos / "boot" / "000.jpg")
    with pytest.raises(ValueError, match="images with 3 channels"):
        loaded(torch.zeros(1, 3, 28, 28))
    torch.manual_seed(0)
    save_backbone(Backbone("torchvision:resnet18", image_size=160), tmp_path / "b.safetensors")
    other = embedded(str(tmp_path / "b.safetensors"), photos, tmp_path)
    same(glf.load(tmp_path / "b.safetensors")(other.paths), other.features)
    library = glf.load("torchvision:resnet18", weights=tmp_path / "b.safetensors", image_size=160)
    assert torch.equal(next(library.parameters()), next(glf.load(tmp_path / "b.safetensors").parameters()))


# --- a torch module


def test_copies_are_the_same_model(model, photos, tmp_path):
    path = photos / "coat" / "003.jpg"
    expected = model(path)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(path), expected)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other = glf.load(LITE, image_size=SIZE)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not torch.equal(other(path), expected)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(path), expected)


def test_gradients_only_when_asked_for(photos):
    torch.manual_seed(0)
    model = glf.load("timm:test_resnet", weights=_weights(photos.parent / "w.pt"))
    x = torch.rand(4, 3, 64, 64)
    assert not model(x).requires_grad
    wanted = x.clone().requires_grad_()
    model(wanted).sum().backward()
    assert wanted.grad is not None
    assert wanted.grad.abs().sum() > 0
    model.zero_grad()
    model.train()
    features = model(x)
    features.square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert sum(float(p.grad.abs().sum()) for p in model.parameters()) > 0
    with torch.no_grad():
        assert not model(x).requires_grad
    model.eval()
    head = torch.nn.Linear(features.shape[1], 2)  # features in evaluation mode are ordinary tensors
    head(model(x)).sum().backward()
    assert head.weight.grad is not None


def _weights(path: Path) -> Path:
    torch.manual_seed(0)
    torch.save(Backbone("timm:test_resnet", image_size=64).body.state_dict(), path)
    return path


def test_a_training_step_sees_all_images_as_one_batch(photos):
    model = glf.load("timm:test_resnet", weights=_weights(photos.parent / "w.pt"), batch_size=2).train()
    batches: list[int] = []
    model.backbone.register_forward_pre_hook(lambda module, given: batches.append(len(given[0])))
    paths = [str(path) for path in sorted(photos.glob("boot/*.jpg"))][:3]
    model(paths)
    model.eval()(paths)
    assert batches == [3, 2, 1]


def test_other_precisions_and_devices(model, photos):
    path = photos / "boot" / "000.jpg"
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert half(path).dtype == torch.float32
    assert torch.cosine_similarity(half(path), model(path)) > 0.99
    meta = copy.deepcopy(model).to("meta")
    assert meta.device.type == "meta"
    with torch.device("cpu"):
        assert meta.train()(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).device.type == "meta"


# --- mistakes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "int is no image: give a path"),
        ({"image": 1}, "dict is no image"),
        ([7], "int is no image"),
        ([], "no images: give a path"),
        ("no/such.jpg", "no/such.jpg"),
        (b"text", "a bytes cannot be read as an image"),
        (torch.zeros(2, 5, 8, 8), r"a tensor of shape \(2, 5, 8, 8\); expected"),
        (torch.full((1, 3, 8, 8), 2.5), "values from 2.5 to 2.5: give uint8, or floats from 0 to 1"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int64), "images of type torch.int64"),
        (torch.full((1, 3, 8, 8), torch.nan), "values from nan"),
        (np.full((1, 8, 8, 3), 7.5), "values from 7.5 to 7.5; expected 0 to 1"),
        ([np.zeros((2, 8, 8, 3), np.uint8)], r"\(2, 8, 8, 3\) in a list is more than one image"),
    ],
)
def test_what_is_no_image(model, given, message):
    with pytest.raises((ValueError, OSError), match=message):
        model(given)


def test_folders_and_broken_files_are_named(model, photos, tmp_path):
    with pytest.raises(ValueError, match=r"boot is a folder: give its files, or use `glf embed`"):
        model(photos / "boot")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ValueError, match=r"broken\.jpg cannot be read as an image \(.*\): give another one"):
        model([photos / "boot" / "000.jpg", tmp_path / "broken.jpg"])


def test_options_of_library_models_only(tmp_path):
    with pytest.raises(ValueError, match="only apply to timm: and torchvision: models"):
        glf.load("runs/a", image_size=32)
    with pytest.raises(ValueError, match="batch_size"):
        glf.load("pixels", batch_size=0)
    with pytest.raises(FileNotFoundError, match="no backbone at"):
        glf.load(tmp_path)


def test_features_that_are_not_finite_are_an_error(photos):
    model = glf.load("timm:test_resnet", weights=_weights(photos.parent / "w.pt"))
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite: its training diverged"):
        model(photos / "boot" / "000.jpg")


def test_images_are_moved_to_the_model(photos):
    model = glf.load("timm:test_resnet", weights=_weights(photos.parent / "w.pt")).train()
    images = torch.rand(3, 3, 80, 80)

    def run(load: Callable[[Any], Any]) -> torch.Tensor:
        return load(copy.deepcopy(model))(images)

    same_on_gpu(run)
