"""Checkpoints of other libraries, written by their own code and by Lightning, and read without executing code."""

import os
from argparse import Namespace
from collections.abc import Callable
from copy import deepcopy
from enum import Enum
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import timm
import torch
import torchvision
from lightly.loss import NTXentLoss
from lightly.models.modules import DINOProjectionHead, SimCLRProjectionHead
from lightly.models.utils import deactivate_requires_grad
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader

from glf.nn.backbone import Backbone
from glf.nn.weights import load_weights, match_state_dict, read_tensors
from pictures import photos

SIZE = 32


def resnet() -> nn.Module:
    model = torchvision.models.resnet18()
    model.fc = nn.Identity()
    return model


class LightlySimCLR(L.LightningModule):
    """As in lightly's documentation: the ResNet's children in an nn.Sequential, and a projection head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])
        self.projection_head = SimCLRProjectionHead(512, 64, 32)
        self.criterion = NTXentLoss()

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        z = self.projection_head(self.backbone(batch).flatten(1))
        return self.criterion(z, z.flip(1))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LightlyDino(LightlySimCLR):
    """A student and its EMA teacher."""

    def __init__(self) -> None:
        super().__init__()
        del self.backbone, self.projection_head
        self.teacher_backbone = resnet()  # first, because the order should not matter
        deactivate_requires_grad(self.teacher_backbone)
        self.student_backbone = resnet()
        self.student_head = DINOProjectionHead(512, 64, 32, 32)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        z = self.student_head(self.student_backbone(batch))
        return self.criterion(z, z.flip(1))


class SoloLearn(LightlySimCLR):
    """The layout of solo-learn's checkpoints: backbone, online classifier, projector, and EMA copies of two of them.

    Its hyperparameters are OmegaConf objects and are saved with the weights.
    """

    def __init__(self, cfg: Any) -> None:
        super().__init__()
        del self.backbone, self.projection_head
        self.save_hyperparameters(cfg)
        self.backbone = resnet()
        self.classifier = nn.Linear(512, 10)
        self.projector = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 32))
        self.momentum_backbone = deactivated(deepcopy(self.backbone))
        self.momentum_projector = deactivated(deepcopy(self.projector))

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        h = self.backbone(batch)
        z = self.projector(h)
        return self.criterion(z, z.flip(1)) + self.classifier(h.detach()).mean()


def deactivated(module: nn.Module) -> nn.Module:
    deactivate_requires_grad(module)
    return module


SETTINGS = {"method": "byol", "backbone": {"name": "resnet18", "kwargs": {}}, "augmentations": [{"crop_size": 32}]}
TRAINED: dict[str, tuple[Callable[[], L.LightningModule], Callable[[Any], nn.Module]]] = {
    "lightly, sequential": (LightlySimCLR, lambda m: nn.Sequential(m.backbone, nn.Flatten())),
    "lightly, student and teacher": (LightlyDino, lambda m: m.student_backbone),
    "solo-learn": (lambda: SoloLearn(OmegaConf.create(SETTINGS)), lambda m: m.backbone),
    "solo-learn, older": (lambda: SoloLearn(Namespace(encoder="resnet18", lr=0.3)), lambda m: m.backbone),
}


@pytest.fixture(scope="module", params=TRAINED)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """A file as Lightning writes it after a step on real images, and the network in it."""
    torch.manual_seed(0)
    build, inside = TRAINED[request.param]
    module = build()
    x = nn.functional.interpolate(photos(), SIZE)
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(list(x), batch_size=len(x)))
    path = tmp_path_factory.mktemp("peer") / "last.ckpt"
    trainer.save_checkpoint(path)
    return path, inside(module).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18"])
def test_a_checkpoint_of_another_library_gives_its_features(checkpoint: tuple[Path, nn.Module], name: str) -> None:
    path, theirs = checkpoint
    ours = Backbone(name, image_size=SIZE, stem="standard").eval()
    load_weights(ours.body, path)
    x = nn.functional.interpolate(photos(), SIZE)
    with torch.no_grad():
        torch.testing.assert_close(ours.body(x), theirs(x), rtol=1e-5, atol=1e-6)
        assert (ours.body(x) - Backbone(name, image_size=SIZE, stem="standard").eval().body(x)).abs().max() > 1e-3


PREFIXES = (
    "module.", "model.", "encoder.", "student_backbone.", "module.encoder_q.", "model.backbone.", "online.net.",
    "_orig_mod.",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_any_prefix_next_to_any_head(tmp_path: Path, prefix: str) -> None:
    source, target = (timm.create_model("test_resnet", num_classes=0) for _ in range(2))
    state = {f"{prefix}{name}": tensor for name, tensor in source.state_dict().items()}
    for head in ("projector", "projection_head", "predictor", "prototypes", "fc"):
        state |= {f"{prefix}{head}.0.weight": torch.ones(2), f"{head}.weight": torch.ones(3)}
    torch.save({"state_dict": state, "epoch": 7}, tmp_path / "w.pth")
    load_weights(target, tmp_path / "w.pth")
    assert all(torch.equal(t, target.state_dict()[name]) for name, t in source.state_dict().items())


@pytest.mark.parametrize("teacher", ["momentum_", "teacher_", "target_", "ema_"])
def test_the_student_is_preferred_to_its_teacher(teacher: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    given = {f"{teacher}net.0.weight": torch.zeros(2, 2), f"{teacher}net.0.bias": torch.zeros(2)}
    given |= {name.replace(teacher, "the_very_own_"): t + 1 for name, t in given.items()}
    assert match_state_dict(model, given)["0.weight"].sum() == 4
    only = {name: t for name, t in given.items() if name.startswith(teacher)}
    assert match_state_dict(model, only)["0.weight"].sum() == 0


def test_a_block_whose_name_ends_like_the_stems_is_not_confused_with_it() -> None:
    """layer1.0.conv1.weight ends with conv1.weight, but its prefix covers fewer of the model's names."""
    model = timm.create_model("resnet18", num_classes=0)
    given = {f"net.{name}": tensor for name, tensor in model.state_dict().items()}
    assert match_state_dict(model, given).keys() == model.state_dict().keys()


class Colour(Enum):
    RED = 1


class Notes(list):  # type: ignore[type-arg]
    """A user-defined list."""


class Harmful:
    def __init__(self, path: Path, function: Callable[..., object]) -> None:
        self.path, self.function = path, function

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, (str(self.path),)


def touch(path: str) -> None:
    Path(path).touch()


def test_objects_next_to_the_weights_are_ignored_and_never_called(tmp_path: Path) -> None:
    made = tmp_path / "made"
    others = {"hyper_parameters": Namespace(colour=Colour.RED, bad=Harmful(made, touch)), "path": Path("a/b")}
    torch.save({"state_dict": {"weight": torch.ones(1, 1), "bias": torch.zeros(1)}, **others}, tmp_path / "w.ckpt")
    assert set(read_tensors(tmp_path / "w.ckpt")) == {"weight", "bias"}
    assert not made.exists()
    torch.load(tmp_path / "w.ckpt", weights_only=False)
    assert made.exists(), "unpickling the file would execute code"


@pytest.mark.parametrize("other", [Notes([1]), os.system], ids=["user-defined list", "os.system"])
def test_objects_that_cannot_be_ignored_are_an_error_with_advice(tmp_path: Path, other: object) -> None:
    torch.save({"state_dict": {"weight": torch.ones(1)}, "other": other}, tmp_path / "w.ckpt")
    with pytest.raises(ValueError, match=r"w\.ckpt cannot be read as weights .*: save its state_dict alone") as error:
        read_tensors(tmp_path / "w.ckpt")
    assert "\n" not in str(error.value)
