"""The model card of an adapted encoder names the model it was made from, and what was kept."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from glf.adaptation.run import adapt
from glf.config.inference import ExportConfig
from glf.config.training import AdaptConfig, ResolvedAdaptConfig, ResolvedPretrainConfig
from glf.exporting.base_model import adaptation, base_model
from glf.exporting.card_data import header
from glf.exporting.write import export
from glf.rundir import write_config


@pytest.mark.parametrize(
    ("encoder", "weights", "name"),
    [
        ("timm:resnet18", None, "timm/resnet18.a1_in1k"),
        ("timm:resnet18.fb_swsl_ig1b_ft_in1k", None, "timm/resnet18.fb_swsl_ig1b_ft_in1k"),
        ("timm:resnet18", Path("mine.pt"), "resnet18"),
        ("timm:resnet18.no_such_tag", None, "resnet18.no_such_tag"),
        ("torchvision:resnet18", None, "resnet18"),
        ("run:runs/moved away", None, "moved away"),
        ("run:runs/2024", None, "2024"),
        ("run:runs/a: b/backbone.safetensors", None, "a: b"),
    ],
)
def test_the_base_is_an_id_of_the_hub_or_a_name(encoder: str, weights: Path | None, name: str) -> None:
    config = AdaptConfig(encoder=encoder, weights=weights)
    assert base_model(config) == name
    text = header("timm", {}, config, "mit", None)
    assert yaml.safe_load(text.strip("-"))["base_model"] == name


def saved(run: Path, config: ResolvedPretrainConfig) -> Path:
    run.mkdir()
    write_config(run, config)
    return run


def test_an_adapted_run_is_followed_to_its_own_base(tmp_path: Path) -> None:
    pretrained = saved(tmp_path / "pretrained", ResolvedPretrainConfig())
    first = saved(tmp_path / "first", ResolvedAdaptConfig(encoder=f"run:{pretrained}"))
    second = saved(tmp_path / "second", ResolvedAdaptConfig(encoder=f"run:{first}/backbone.safetensors"))
    third = AdaptConfig(encoder=f"run:{second}", data="photos")
    assert base_model(third) == "pretrained"
    assert adaptation(third, {}).startswith("Adapted from `second`, itself adapted from `pretrained`, to photos")
    own = saved(tmp_path / "own", ResolvedAdaptConfig(encoder=f"run:{tmp_path / 'own'}"))
    assert base_model(AdaptConfig(encoder=f"run:{own}")) == "own"  # of an endless chain, after --overwrite
    (first / "config.json").write_text("{")
    assert base_model(third) == "first"


VALUES = {"frozen": {"kept": 1.0, "knn": 0.822}, "average 0.75": {"kept": 0.83, "knn": 0.863}, "adapted": {"kept": 0.7}}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"chosen": "average 0.75", "share": 0.75, "by": "knn"},
         "These are the average of 0.75 adapted and 0.25 frozen weights, chosen by k-NN on 1,000 held-out images with"
         " labels, 86.3 % (frozen: 82.2 %). 83 % of the frozen encoder's nearest neighbours are kept."),
        ({"chosen": "adapted", "share": 1.0, "by": "recall"},
         "These are the adapted weights, chosen without labels by the view recall on held-out images. 70 %"),
        ({"chosen": "adapted", "share": 1.0, "by": "--no-choose"},
         "These are the adapted weights, without a comparison with the frozen ones. 70 %"),
        ({"chosen": "frozen", "share": 0.0, "by": "knn"},
         "Nothing beat the frozen encoder in k-NN on 1,000 held-out images with labels: these are its weights,"
         " unchanged."),
    ],
)  # fmt: skip
def test_the_card_says_what_was_kept(found: dict[str, Any], words: str) -> None:
    config = AdaptConfig(encoder="timm:resnet18", data="photos", weights=Path("somewhere/mine.pt"))
    content = {"adaptation": {"candidates": VALUES, **found}, "data": {"train": 9000, "val": 1000}}
    start = "Adapted from `resnet18` with the weights of `mine.pt` to photos (9,000 images) with glf adapt. "
    assert adaptation(config, content).startswith(start + words)


def test_the_card_of_a_run(small_run: Callable[..., Path], few_images: str, tmp_path: Path, console: Console) -> None:
    start, out = small_run(data=few_images, max_images=None), tmp_path / "adapted"
    settings: dict[str, Any] = {"epochs": 1, "views": 2, "batch_size": 64, "val_images": 32}
    result = adapt(AdaptConfig(encoder=f"run:{start}", data=few_images, out=out, **settings), console)
    text = export(ExportConfig(run=out, format="safetensors"), console).card.read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert (header["base_model"], header["library_name"]) == ("run", "pytorch")
    assert "# small_resnet, adapted to few.npz" in text
    assert f"Adapted from `run` to {few_images} (128 images) with glf adapt." in text
    kept = "Nothing beat the frozen" if result["adaptation"]["share"] == 0 else "chosen by k-NN on 32 held-out images"
    assert kept in text
    options = re.search(r"Called from Python with these options: `(.*)`", text)
    assert options is not None
    assert f"'encoder': 'run:{start}'" in options[1]
    assert "base_model" not in export(ExportConfig(run=start, format="safetensors"), console).card.read_text()
