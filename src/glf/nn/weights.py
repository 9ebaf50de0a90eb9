"""Backbones in and out of files. Nothing that is read here can execute code."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from glf.atomic import whole
from glf.nn.backbone import Backbone
from glf.nn.foreign import named_as, read_tensors

FILE = "backbone.safetensors"
_HEADS = (
    "fc.", "_fc.", "classifier.", "head.", "heads.",
    "projector.", "projection_head.", "predictor.", "prediction_head.", "prototypes.",
)  # fmt: skip


def body_state(backbone: Backbone) -> dict[str, Tensor]:
    """The body's weights under their library's own names."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in backbone.body.state_dict().items()}


def save_backbone(backbone: Backbone, path: Path, **more: str) -> None:
    """The body's weights, and in the file's metadata how to build it again and whatever else is to travel with it."""
    content = save(body_state(backbone), metadata={"format": "pt", "glf": json.dumps(backbone.describe()), **more})
    with whole(path) as partial:  # by ourselves: the library's own writer does not raise the system's error
        partial.write_bytes(content)


def load_backbone(path: Path) -> Backbone:
    """The backbone of a run's directory, or of a file that ``save_backbone`` wrote."""
    file, described = check_backbone(path)
    backbone = _built(described, file)
    load_weights(backbone.body, file)
    return backbone


def check_backbone(path: Path) -> tuple[Path, str]:
    """The file of a saved backbone, and what it says to hold; refuses what is none."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no backbone at {file}: is {path} the directory of a finished run?")
    try:
        with safe_open(file, framework="pt") as opened:
            described = (opened.metadata() or {}).get("glf")
    except SafetensorError as error:
        raise ValueError(f"{file} is no safetensors file ({error}): give the directory of a run") from error
    if described is None:
        raise ValueError(
            f"{file} does not say which backbone it holds, so glf did not write it: name the model, and give this file"
            " with --weights"
        )
    return file, described


def _built(described: str, file: Path) -> Backbone:
    """The backbone that a file says it holds; what it says is checked as anything that comes from elsewhere."""
    try:
        given = json.loads(described).items()
        arguments: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given}
        return Backbone(**arguments)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{file} describes no backbone that can be built ({error})") from error


def load_weights(model: nn.Module, path: Path, *, by_order: bool = False) -> None:
    """Weights from a file into a model; heads in the file are left out, anything else must match.

    ``by_order`` pairs tensors by their order instead of their names, for files of another library's naming.
    """
    given = read_tensors(path)
    wanted = model.state_dict()
    if not by_order:
        given = named_as(model, given)
    given = {name: tensor for name, tensor in given.items() if name in wanted or not name.startswith(_HEADS)}
    if by_order:
        given = dict(zip(wanted, given.values(), strict=False))
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    if missing:
        raise ValueError(
            f"{path} lacks {len(missing)} of {len(wanted)} tensors, first {missing[0]!r}: are these the weights of"
            " this --backbone?"
        )
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
