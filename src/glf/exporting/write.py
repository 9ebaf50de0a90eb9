"""glf export: a run's backbone as a file for another library, checked, with its preprocessing and a card."""

import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from glf.config.inference import ExportConfig, Format
from glf.exporting import onnx
from glf.exporting.loading_code import (
    WEIGHTS,
    LoadingCode,
    onnx_recipe,
    safetensors_recipe,
    timm_recipe,
    torchvision_recipe,
)
from glf.exporting.model_card import card
from glf.exporting.preprocess import Preprocess
from glf.files import explain_full_disk
from glf.nn.backbone import Backbone
from glf.nn.weights import body_state, load_backbone, save_backbone
from glf.rundir import CONFIG, saved_config

RECIPES = {
    "timm": timm_recipe,
    "torchvision": torchvision_recipe,
    "safetensors": safetensors_recipe,
    "onnx": onnx_recipe,
}
NAMES: dict[Format, str] = {
    "timm": "model.safetensors",  # with config.json beside it, the layout of timm's folders and of Hugging Face's hub
    "torchvision": "backbone.pth",
    "safetensors": "backbone.safetensors",
    "onnx": "backbone.onnx",
}
ALLOWED = 1e-4  # difference of features, relative to the largest, that rounding in another order may make


class Exported(NamedTuple):
    """What was written."""

    file: Path
    card: Path
    difference: float  # of the features that the file gives, to those of the run


def export(config: ExportConfig, console: Console | None = None) -> Exported:
    """Write the file, what belongs beside it, and its card; nothing, if the file does not give the run's features."""
    console = console or Console()
    folder, name, card_name = _target(config)
    if config.format == "onnx":
        onnx.check_installed()
    if str(config.run).startswith(("timm:", "torchvision:")):
        raise ValueError(f"{config.run} is its library's already: export what you have trained, the directory of a run")
    backbone = load_backbone(config.run).eval()
    recipe = RECIPES[config.format](backbone)
    preprocess = Preprocess.of(backbone, margin=_has_margin(config.run, backbone))
    with explain_full_disk(folder), tempfile.TemporaryDirectory(prefix=".export-", dir=_made(folder)) as place:
        written = Path(place)
        _write(written, name, backbone, recipe, preprocess, config.format)
        difference = check(recipe.code.replace(WEIGHTS, str(written / name)), backbone, config.format)
        text = card(config, backbone, preprocess, recipe.code.replace(WEIGHTS, name), name, difference)
        (written / card_name).write_text(text, encoding="utf-8")
        for file in sorted(written.iterdir(), key=lambda file: file.name == name):  # the weights last
            os.replace(file, folder / file.name)
    done = Exported(folder / name, folder / card_name, difference)
    _say(console, done, recipe, config)
    return done


def check(code: str, backbone: Backbone, format: Format) -> float:  # noqa: A002 (the setting's name)
    """Run the lines of the card; the largest difference of what they give to the backbone's features."""
    scope: dict[str, Any] = {}
    exec(code, scope)
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for count in (1, 3):  # any number of images at a time
        x = torch.rand(count, backbone.channels, backbone.image_size, backbone.image_size, generator=generator)
        with torch.no_grad():
            ours = backbone(x)
            theirs = scope["model"](x.numpy() if format == "onnx" else (x - backbone.mean) / backbone.std)
        difference = np.abs(np.asarray(theirs) - ours.numpy()).max() / max(1.0, float(ours.abs().max()))
        largest = max(largest, float(difference))
    if not largest <= ALLOWED:
        raise ValueError(
            f"the {format} file would give other features than {backbone.name} ({largest:.1e} apart): nothing was"
            f" written; use --format {'safetensors' if format == 'onnx' else 'onnx'}"
        )
    return largest


def _target(config: ExportConfig) -> tuple[Path, str, str]:
    """The folder, the name of the weights in it, and that of the card."""
    name = NAMES[config.format]
    if config.out is None or (not config.out.suffix and not config.out.is_file()) or config.out.is_dir():
        run = config.run if config.run.is_dir() else config.run.parent
        return config.out or run / "export" / config.format, name, "README.md"
    if config.out.suffix != Path(name).suffix:
        raise ValueError(f"--out {config.out} should end with {Path(name).suffix}, or be a folder")
    return config.out.parent, config.out.name, f"{config.out.stem}.md"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _has_margin(run: Path, backbone: Backbone) -> bool:
    """Whether training stored its images with a margin: all but small ones that kept their own size."""
    asked = saved_config(run).image_size if (run / CONFIG).is_file() else backbone.image_size
    return asked is not None or backbone.image_size > 112


def _write(
    folder: Path,
    name: str,
    backbone: Backbone,
    recipe: LoadingCode,
    preprocess: Preprocess,
    format: Format,  # noqa: A002
) -> None:
    if format == "onnx":
        (folder / name).write_bytes(onnx.graph_bytes(backbone, preprocess))
        return
    notes = json.dumps(preprocess.metadata(), indent=1)
    if format == "torchvision":
        content = io.BytesIO()
        torch.save(body_state(backbone), content)
        (folder / name).write_bytes(content.getvalue())
        (folder / Path(name).with_suffix(".json")).write_text(notes + "\n")
        return
    save_backbone(backbone, folder / name, preprocessing=notes)
    if format == "timm":
        settings = {
            "architecture": recipe.name,
            "num_classes": 0,
            "num_features": backbone.width,
            "pretrained_cfg": preprocess.timm() | {"num_classes": 0},
            "model_args": recipe.arguments or {},
        }
        beside = "config.json" if name == NAMES["timm"] else f"{Path(name).stem}.json"
        (folder / beside).write_text(json.dumps(settings, indent=1) + "\n")


def _say(console: Console, done: Exported, recipe: LoadingCode, config: ExportConfig) -> None:
    lines = [
        f"written   {done.file} and its card {done.card}",
        f"checked   its features differ by at most {done.difference:.1e} from those of {config.run}",
        "load it without glf:",
        "",
        *(f"    {line}".rstrip() for line in recipe.code.replace(WEIGHTS, str(done.file)).split("\n")),
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
