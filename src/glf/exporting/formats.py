"""The table of export formats. Each is one record: how its file is called, loaded without glf, and written."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from glf.config.inference import Format
from glf.exporting.loading_code import LoadingCode, onnx_code, safetensors_code, timm_code, torchvision_code
from glf.exporting.onnx import graph_bytes
from glf.exporting.preprocess import Preprocess
from glf.files import sidecar
from glf.nn.backbone import Backbone
from glf.nn.weights import body_state, save_backbone


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """An export format."""

    name: Format
    filename: str
    loading_code: Callable[[Backbone], LoadingCode]  # ValueError if the format cannot represent the backbone
    write: Callable[[Path, Backbone, LoadingCode, Preprocess], None]  # the file, and what belongs next to it
    beside: Callable[[str], tuple[str, ...]] = lambda name: ()  # names of the files next to it, but for the model card
    library: str = "pytorch"  # library_name of the model card
    normalises: bool = False  # whether the exported model normalises its input
    packages: tuple[str, ...] = ()  # needed by the format, installed by the extra of the same name


def _timm_config(name: str) -> tuple[str]:
    return ("config.json" if name == EXPORTERS["timm"].filename else sidecar(Path(name), "json").name,)


def _write_timm(file: Path, backbone: Backbone, loading: LoadingCode, preprocess: Preprocess) -> None:
    _write_safetensors(file, backbone, loading, preprocess)
    settings = {
        "architecture": loading.name,
        "num_classes": 0,
        "num_features": backbone.width,
        "pretrained_cfg": preprocess.timm() | {"num_classes": 0},
        "model_args": loading.arguments or {},
    }
    (config,) = _timm_config(file.name)
    (file.parent / config).write_text(json.dumps(settings, indent=1) + "\n")


def _write_torchvision(file: Path, backbone: Backbone, _: LoadingCode, preprocess: Preprocess) -> None:
    content = io.BytesIO()
    torch.save(body_state(backbone), content)
    file.write_bytes(content.getvalue())
    sidecar(file, "json").write_text(json.dumps(preprocess.metadata(), indent=1) + "\n")


def _write_safetensors(file: Path, backbone: Backbone, _: LoadingCode, preprocess: Preprocess) -> None:
    save_backbone(backbone, file, preprocessing=json.dumps(preprocess.metadata(), indent=1))


def _write_onnx(file: Path, backbone: Backbone, _: LoadingCode, preprocess: Preprocess) -> None:
    file.write_bytes(graph_bytes(backbone, preprocess))


_FORMATS = (
    Exporter(
        name="timm",
        filename="model.safetensors",  # next to a config.json, as in timm's folders and on Hugging Face's hub
        loading_code=timm_code,
        write=_write_timm,
        beside=_timm_config,
        library="timm",
    ),
    Exporter(
        name="torchvision",
        filename="backbone.pth",
        loading_code=torchvision_code,
        write=_write_torchvision,
        beside=lambda name: (sidecar(Path(name), "json").name,),
    ),
    Exporter(
        name="safetensors",
        filename="backbone.safetensors",
        loading_code=safetensors_code,
        write=_write_safetensors,
    ),
    Exporter(
        name="onnx",
        filename="backbone.onnx",
        loading_code=onnx_code,
        write=_write_onnx,
        library="onnx",
        normalises=True,
        packages=("onnx", "onnxscript", "onnxruntime"),
    ),
)
EXPORTERS: dict[Format, Exporter] = {exporter.name: exporter for exporter in _FORMATS}
