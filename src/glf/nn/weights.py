"""Backbones in and out of files. Nothing that is read here can execute code."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from glf.atomic import whole
from glf.nn.backbone import Backbone

FILE = "backbone.safetensors"
_CLASSIFIERS = ("fc.", "_fc.", "classifier.", "head.", "heads.")
_WRAPPERS = ("state_dict", "model", "model_state", "model_state_dict")
_PREFIXES = ("module.", "network.student.0.body.", "student.0.body.", "backbone.", "encoder.", "body.")


def save_backbone(backbone: Backbone, path: Path) -> None:
    """The body's weights under their library's own names, and how to build it again in the file's metadata."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in backbone.body.state_dict().items()}
    content = save(state, metadata={"format": "pt", "glf": json.dumps(backbone.describe())})
    with whole(path) as partial:  # by ourselves: the library's own writer does not raise the system's error
        partial.write_bytes(content)


def load_backbone(path: Path) -> Backbone:
    """The backbone of a run's directory, or of a file that ``save_backbone`` wrote."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no backbone at {file}: is {path} the directory of a finished run?")
    try:
        with safe_open(file, framework="pt") as opened:
            described = (opened.metadata() or {}).get("glf")
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file ({error})") from error
    if described is None:
        raise ValueError(f"{file} does not say which backbone it holds: it was not written by glf")
    backbone = _built(described, file)
    load_weights(backbone.body, file)
    return backbone


def _built(described: str, file: Path) -> Backbone:
    """The backbone that a file says it holds; what it says is checked as anything that comes from elsewhere."""
    try:
        given = json.loads(described).items()
        arguments: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given}
        return Backbone(**arguments)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{file} describes no backbone that can be built ({error})") from error


def load_weights(model: nn.Module, path: Path, *, by_order: bool = False) -> None:
    """Weights from a file into a model; a classifier in the file is left out, anything else must match.

    ``by_order`` pairs tensors by their order instead of their names, for files of another library's naming.
    """
    given = _read(path)
    wanted = model.state_dict()
    if not by_order:
        given = _without_prefix(given, wanted)
    given = {name: tensor for name, tensor in given.items() if not _classifier_of(name, wanted)}
    if by_order:
        given = dict(zip(wanted, given.values(), strict=False))
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} of {len(wanted)} tensors, first {missing[0]!r}")
    surplus = [name for name in given if name not in wanted]
    if surplus:
        raise ValueError(
            f"{path} holds {len(surplus)} tensors that the model lacks, first {surplus[0]!r}: another model?"
        )
    for name, tensor in wanted.items():
        if name in given and given[name].shape != tensor.shape:
            shapes = f"{tuple(given[name].shape)}, the model's {tuple(tensor.shape)}"
            raise ValueError(f"{path}: {name} has shape {shapes} (another stem or another number of channels?)")
    model.load_state_dict({name: given.get(name, tensor) for name, tensor in wanted.items()})


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}")
    try:
        if path.suffix == ".safetensors":
            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and safetensors each raise their own
        raise ValueError(f"{path} cannot be read as weights ({type(error).__name__}: {error})") from error
    for wrapper in _WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not a dictionary of tensors")
    return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}


def _classifier_of(name: str, wanted: dict[str, Tensor]) -> bool:
    return name.startswith(_CLASSIFIERS) and name not in wanted


def _without_prefix(given: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names as the model has them: wrappers of other tools put one of a few prefixes in front."""
    for prefix in ("", *_PREFIXES):
        stripped = {name[len(prefix) :]: t for name, t in given.items() if name.startswith(prefix)}
        if any(name in stripped for name in wanted):
            return stripped
    return given
