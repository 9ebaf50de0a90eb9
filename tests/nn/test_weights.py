"""Backbones saved and loaded; weights in files of other tools."""

import os
import pickle
from itertools import cycle
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from glf.nn.backbone import Backbone
from glf.nn.heads import Heads
from glf.nn.network import Network
from glf.nn.weights import load_backbone, load_weights, save_backbone
from glf.runfiles import BACKBONE


def build(seed: int, name: str = "small_resnet", channels: int = 1, size: int = 28) -> Backbone:
    torch.manual_seed(seed)
    return Backbone(name, channels=channels, image_size=size, mean=(0.3,) * channels, std=(0.2,) * channels)


def images(backbone: Backbone) -> Tensor:
    return torch.rand(4, backbone.channels, backbone.image_size, backbone.image_size)


def same(a: Backbone, b: Backbone) -> bool:
    x = images(a)
    return torch.equal(a.eval()(x), b.eval()(x))


@pytest.mark.parametrize("in_directory", [False, True])
@pytest.mark.parametrize(
    ("name", "channels", "size"), [("small_resnet", 1, 28), ("timm:test_vit", 3, 32), ("torchvision:resnet18", 1, 32)]
)
def test_a_saved_backbone_is_loaded_unchanged(tmp_path, name, channels, size, in_directory):
    backbone = build(0, name, channels, size)
    backbone(images(backbone))  # changes the batch statistics
    save_backbone(backbone, tmp_path / BACKBONE)
    assert [path.name for path in tmp_path.iterdir()] == [BACKBONE]
    loaded = load_backbone(tmp_path if in_directory else tmp_path / BACKBONE)
    assert loaded.describe() == backbone.describe()
    assert same(loaded, backbone)


def test_saved_weights_have_the_librarys_names(tmp_path):
    torch.manual_seed(0)
    backbone = Backbone("timm:resnet18", image_size=224, mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3)).eval()
    save_backbone(backbone, tmp_path / BACKBONE)
    model = timm.create_model("resnet18", num_classes=0).eval()
    model.load_state_dict(load_file(tmp_path / BACKBONE), strict=True)
    x = torch.rand(1, 3, 224, 224)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.5, 0.4, 0.3), (0.1, 0.2, 0.3)))
    with torch.no_grad():
        assert torch.equal(model((x - mean) / std), backbone(x))
    with safe_open(tmp_path / BACKBONE, framework="pt") as file:
        assert set(file.metadata()) == {"format", "glf"}


def in_a_checkpoint(state: dict[str, Tensor]) -> dict[str, object]:
    """A training checkpoint of glf: the network with heads and EMA teacher."""
    net = Network(build(7), Heads(projector=(8,)), frozenset({"teacher"}))
    net.backbone.body.load_state_dict(state)
    return {"state_dict": {f"network.{name}": t for name, t in net.state_dict().items()}, "epoch": 3}


WRAPPED = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state},
    "module.": lambda state: {f"module.{name}": t for name, t in state.items()},
    "backbone.": lambda state: {
        "state_dict": {f"backbone.{name}": t for name, t in state.items()} | {"projector.0.weight": torch.ones(2)}
    },
    "classifier": lambda state: {**state, "fc.weight": torch.ones(10, 256), "fc.bias": torch.ones(10)},
    "checkpoint": in_a_checkpoint,
    "no counters": lambda state: {k: t for k, t in state.items() if not k.endswith("num_batches_tracked")},
}


@pytest.mark.parametrize(("kind", "suffix"), [*zip(WRAPPED, cycle((".pt", ".pth", ".ckpt")))])
def test_files_of_other_tools(tmp_path, kind, suffix):
    source, target = build(0), build(1)
    path = tmp_path / f"weights{suffix}"
    torch.save(WRAPPED[kind](source.body.state_dict()), path)
    assert not same(source, target)
    load_weights(target.body, path)
    assert same(source, target)


def test_a_safetensors_file_of_another_tool(tmp_path):
    source, target = build(0), build(1)
    save_file({**source.body.state_dict(), "fc.weight": torch.ones(10, 256)}, tmp_path / "w.safetensors")
    load_weights(target.body, tmp_path / "w.safetensors")
    assert same(source, target)
    with pytest.raises(ValueError, match="was not written by glf and does not describe its model"):
        load_backbone(tmp_path / "w.safetensors")


def test_by_order_pairs_tensors_regardless_of_their_names(tmp_path):
    source, target = build(0), build(1)
    renamed = {f"x{i}": t for i, t in enumerate(source.body.state_dict().values())}
    torch.save({"_fc.weight": torch.ones(10, 256), **renamed}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="lacks"):
        load_weights(target.body, tmp_path / "w.pt")
    load_weights(target.body, tmp_path / "w.pt", by_order=True)
    assert same(source, target)


# --- invalid files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {k: t for k, t in state.items() if k != "bn1.bias"}, r"lacks 1 of .*first 'bn1.bias'"),
        (
            lambda state: state | {"conv1.weight": torch.ones(32, 3, 3, 3)},
            r"conv1.weight has shape \(32, 3, 3, 3\), the model's \(32, 1, 3, 3\)",
        ),
        (lambda _: {"something": torch.ones(2)}, r"lacks (\d+) of \d+ tensors"),
        (lambda state: state | {"layer1.1.bn1.bias": torch.ones(2)}, r"1 tensors that the model lacks.*another model"),
        (lambda _: {}, "lacks"),
        (lambda _: [torch.ones(2)], "holds a list, not a dictionary"),
    ],
    ids=["missing", "shape", "foreign", "surplus", "empty", "list"],
)  # fmt: skip
def test_weights_that_do_not_match_change_nothing(tmp_path, change, message):
    target = build(1)
    before = {name: t.clone() for name, t in target.body.state_dict().items()}
    torch.save(change(build(0).body.state_dict()), tmp_path / "w.pt")
    with pytest.raises(ValueError, match=message):
        load_weights(target.body, tmp_path / "w.pt")
    assert all(torch.equal(t, before[name]) for name, t in target.body.state_dict().items())


@pytest.mark.parametrize("name", ["w.pt", "w.ckpt", "w.safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"these are no weights", b"\x80\x02" + bytes(100)], ids=["empty", "text", "bytes"]
)
def test_garbage_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} cannot be read as weights"):
        load_weights(nn.Linear(1, 1), tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is not a safetensors file"):
        load_backbone(tmp_path / name)


class Harmful:
    """Creates a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, 2))])
@pytest.mark.parametrize("name", ["w.pt", "w.ckpt", BACKBONE])
def test_nothing_in_a_file_is_executed(tmp_path, save, name):
    made = tmp_path / "made"
    pickle.loads(pickle.dumps(Harmful(made)))
    assert made.is_dir(), "unpickling the file would execute code"
    made.rmdir()
    save({"conv1.weight": Harmful(made)}, tmp_path / name)
    with pytest.raises(ValueError, match=name):
        load_weights(nn.Linear(1, 1), tmp_path / name)
    with pytest.raises(ValueError, match=name):
        load_backbone(tmp_path / name)
    assert not made.exists()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no weights at .*w\.pt"):
        load_weights(nn.Linear(1, 1), tmp_path / "w.pt")
    with pytest.raises(FileNotFoundError, match=f"no backbone at .*{BACKBONE}: is .* the directory of a finished run"):
        load_backbone(tmp_path)
