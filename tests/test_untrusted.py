"""Files from elsewhere are read, never run: a pickle that would make a folder, at every door there is."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from glf import rundir
from glf.config.evaluation import EvaluateConfig
from glf.config.training import PretrainConfig, with_defaults
from glf.data.sources import load_images
from glf.evaluation.suite import evaluate
from glf.nn.backbone import Backbone
from glf.nn.pretrained import pretrained
from glf.nn.weights import load_backbone, save_backbone
from glf.runfiles import BACKBONE, LAST
from glf.train.run import pretrain

Run = Callable[..., Path]


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def harmful(tmp_path: Path) -> Any:
    """One of those, which is known to work; at the end it must not have been run."""
    made = tmp_path / "made"
    pickle.loads(pickle.dumps(Harmful(made)))
    made.rmdir()
    yield Harmful(made)
    assert not made.exists(), "something in a file was executed"


def objects(harmful: Harmful) -> bytes:
    """An .npy file of Python objects."""
    out = io.BytesIO()
    np.save(out, np.array([harmful] * 160, dtype=object), allow_pickle=True)
    return out.getvalue()


def archive(path: Path, **arrays: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in arrays.items():
            file.writestr(f"{name}.npy", data)
    return path


def plain(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


KINDS: dict[str, Callable[[Any, Path], Any]] = {
    "torch": torch.save,
    "old torch": lambda value, path: torch.save(value, path, _use_new_zipfile_serialization=False),
    "pickle": lambda value, path: path.write_bytes(pickle.dumps(value)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors", "w.bin"])
def test_weights(kind: str, name: str, harmful: Harmful, small_run: Run, tmp_path: Path) -> None:
    KINDS[kind]({"state_dict": {"conv1.weight": harmful}}, tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} cannot be read as weights"):
        small_run(weights=tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} cannot be read as weights"):
        small_run(method="simclr+lpm", prior="timm:test_resnet", prior_weights=tmp_path / name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_to_go_on_from(kind: str, harmful: Harmful, console: Console, tmp_path: Path) -> None:
    run = tmp_path / "run"
    rundir.write_config(run, with_defaults(PretrainConfig(out=run)))
    (run / LAST).parent.mkdir()
    KINDS[kind]({"glf_schema": 2, "state_dict": {}, "callbacks": harmful}, run / LAST)
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        pretrain(PretrainConfig(out=run, resume=True), console)


def test_arrays_of_images(harmful: Harmful, tmp_path: Path) -> None:
    good = plain(np.zeros((160, 28, 28), np.uint8))
    (tmp_path / "a.npy").write_bytes(objects(harmful))
    archive(tmp_path / "images.npz", images=objects(harmful))
    archive(tmp_path / "labels.npz", images=good, labels=objects(harmful))
    archive(tmp_path / "classes.npz", images=good, labels=plain(np.zeros(160, int)), classes=objects(harmful))
    for name in ("a.npy", "images.npz", "labels.npz", "classes.npz"):
        with pytest.raises(ValueError, match=f"{name} is not an .*(allow_pickle=False|Python objects)"):
            load_images(str(tmp_path / name))
    (tmp_path / "b.npy").write_bytes(pickle.dumps(harmful))
    with pytest.raises(ValueError, match=r"b\.npy is not an"):
        load_images(str(tmp_path / "b.npy"))


def test_priors(harmful: Harmful, small_run: Run, tmp_path: Path) -> None:
    for name, data in (("a.npy", objects(harmful)), ("b.npy", pickle.dumps(harmful))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"the prior .*{name} cannot be read"):
            small_run(method="simclr+lpm", prior=f"file:{tmp_path / name}")
    archive(tmp_path / "c.npz", rows=objects(harmful))
    with pytest.raises(ValueError, match="another kind of file"):
        small_run(method="simclr+lpm", prior=f"file:{tmp_path / 'c.npz'}")
    (tmp_path / "other").mkdir()
    torch.save({"conv1.weight": harmful}, tmp_path / "other" / BACKBONE)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        small_run(method="simclr+lpm", prior=f"run:{tmp_path / 'other'}")


def test_what_is_judged(harmful: Harmful, console: Console, tmp_path: Path) -> None:
    run = tmp_path / "run"
    rundir.write_config(run, with_defaults(PretrainConfig(out=run)))
    torch.save({"conv1.weight": harmful}, run / BACKBONE)
    for spec in (run, run / BACKBONE):
        with pytest.raises(ValueError, match="is not a safetensors file"):
            evaluate(EvaluateConfig(run=spec, data="fashion-mini", out=tmp_path / "out"), console)


def test_what_the_cache_holds(harmful: Harmful, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features, packed images and their notes are files like any others."""
    from PIL import Image

    from glf.nn.features import extract

    images = load_images("fashion-mini", "test").select(np.arange(160))
    extract(torch.nn.Flatten(), images, cache=tmp_path / "features")
    (kept,) = (tmp_path / "features").iterdir()
    for file in kept.iterdir():  # features and journal: computed again
        file.write_bytes(objects(harmful))
    features = extract(torch.nn.Flatten(), images, cache=tmp_path / "features")
    np.testing.assert_array_equal(features, images.pixels.reshape(160, -1).astype(np.float32) / 255)

    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    Image.fromarray(images.pixels[0, :, :, 0]).save(tmp_path / "set" / "0.png")
    load_images(str(tmp_path / "set"))
    (store,) = (tmp_path / "cache" / "images").glob("*.npy")
    store.write_bytes(objects(harmful))
    np.testing.assert_array_equal(load_images(str(tmp_path / "set")).pixels[0], images.pixels[0])  # packed anew


@pytest.mark.parametrize("kind", ["torch", "old torch"])
def test_published_weights_in_the_libraries_caches(
    kind: str, harmful: Harmful, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    import torchvision

    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    KINDS[kind]({"conv1.weight": harmful}, tmp_path / "checkpoints" / Path(url).name)
    with pytest.raises(ValueError, match=r"weights of torchvision:resnet18 could not be read"):
        pretrained("torchvision:resnet18")

    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--timm--test_resnet.r160_in1k"
    (snapshot / "snapshots" / "0").mkdir(parents=True)
    (snapshot / "refs").mkdir()
    (snapshot / "refs" / "main").write_text("0")
    KINDS[kind]({"conv1.weight": harmful}, snapshot / "snapshots" / "0" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"weights of timm:test_resnet could not be read"):
        pretrained("timm:test_resnet")


@pytest.mark.parametrize(
    "described",
    [
        "[]",
        "{",
        '{"name": "small_resnet", "command": "rm"}',
        '{"name": 3}',
        '{"name": "small_resnet", "image_size": "large"}',
        '{"name": "small_resnet", "channels": -1}',
        '{"name": "small_resnet", "mean": [0.5, 0.5]}',
        '{"name": "hf-hub:someone/something"}',
    ],
)
def test_a_backbone_that_describes_itself_wrongly(described: str, tmp_path: Path) -> None:
    save_backbone(Backbone("small_resnet", channels=1, image_size=28), tmp_path / "good.safetensors")
    assert load_backbone(tmp_path / "good.safetensors").width == 256
    save_file({"x": torch.zeros(1)}, tmp_path / "a.safetensors", metadata={"glf": described})
    with pytest.raises(ValueError, match=r"a\.safetensors"):
        load_backbone(tmp_path / "a.safetensors")
