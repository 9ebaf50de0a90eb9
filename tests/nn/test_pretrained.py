"""Published models: found in the caches of their libraries, never downloaded without permission."""

from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from glf.nn.pretrained import pretrained


@pytest.fixture
def hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches of timm and torchvision."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "torch"))
    return tmp_path


def images() -> torch.Tensor:
    return torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_a_timm_model_from_the_cache(hubs: Path) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("test_resnet")
    settings = theirs.pretrained_cfg
    snapshot = hubs / "hf" / f"models--{settings['hf_hub_id'].replace('/', '--')}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    save_file(theirs.state_dict(), snapshot / "model.safetensors")
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")
    theirs.reset_classifier(0)
    mine = pretrained("timm:test_resnet", size=64).eval()
    mean, std = (torch.tensor(settings[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        assert torch.allclose(mine(images()), theirs.eval()((images() - mean) / std), atol=1e-5)
    assert mine.image_size == 64
    assert pretrained("timm:test_resnet").image_size == settings["input_size"][-1]


def test_a_torchvision_model_from_the_cache(hubs: Path) -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.resnet18()
    (hubs / "torch" / "checkpoints").mkdir(parents=True)
    name = Path(torchvision.models.ResNet18_Weights.DEFAULT.url).name
    torch.save(theirs.state_dict(), hubs / "torch" / "checkpoints" / name)
    theirs.fc = torch.nn.Identity()
    mine = pretrained("torchvision:resnet18").eval()
    settings = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (settings.mean, settings.std))
    with torch.no_grad():
        assert torch.allclose(mine(images()), theirs.eval()((images() - mean) / std), atol=1e-5)
    assert mine.image_size == 224


def test_a_local_file_of_weights(hubs: Path) -> None:
    theirs = torchvision.models.resnet18()
    torch.save({"state_dict": {f"module.{k}": v for k, v in theirs.state_dict().items()}}, hubs / "w.pth")
    mine = pretrained("torchvision:resnet18", weights=hubs / "w.pth")
    assert torch.equal(mine.body.layer4[1].conv2.weight, theirs.layer4[1].conv2.weight)  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:test_resnet", "the weights of timm:test_resnet are not on this machine: download them with --download"),
        ("torchvision:resnet18", "the weights of torchvision:resnet18 are not on this machine"),
        ("timm:resnet18x", "unknown timm model 'resnet18x' - did you mean 'resnet18'"),
        ("torchvision:resnet19", "unknown torchvision model 'resnet19' - did you mean 'resnet1"),
        ("resnet18", "a published model must be timm:<model> or torchvision:<model>, got 'resnet18'"),
        ("timm:", "a published model must be timm:<model>"),
    ],
)
def test_unavailable_models_are_refused(hubs: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pretrained(name)
