"""Weights as others save them: wrapped, prefixed, beside heads and teachers. Nothing that is read can execute code."""
# MERGED DOCS:
# | """Backbones in and out of files. Nothing that is read here can execute code."""

import json
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from glf.config import ResolvedPretrainConfig
from glf.data.images import ImageSet, statistics
from glf.device import seed_everything
from glf.files import atomic_write
from glf.nn.backbone import Backbone

_WRAPPERS = ("state_dict", "model", "model_state", "model_state_dict")
# Parts of a prefix that tell a teacher, a moving average, from the network that learns.
_TEACHERS = re.compile(r"momentum|teacher|target|ema|shadow|encoder_k")


def check_weights(path: Path) -> None:
    """Refuses what is no file, before anything that takes long."""
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}: give a .safetensors, .pt, .pth or .ckpt file")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of anything that torch.save wrote, under the names that they have there."""
    check_weights(path)
    try:
        loaded: Any = load_file(path) if path.suffix == ".safetensors" else _unpickled(path)
    except Exception as error:  # pickle, zip and safetensors each raise their own
        why = str(error).partition("\n")[0]
        raise ValueError(
            f"{path} cannot be read as weights ({type(error).__name__}: {why}): save its state_dict alone, as"
            " .safetensors"
        ) from error
    for wrapper in _WRAPPERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(wrapper), dict):
            loaded = loaded[wrapper]
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not a dictionary of tensors")
    return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}


class _Shell:
    """Stands for any class or function that a file names, and becomes an empty dictionary whatever it is called with.

    Lightning's checkpoints have the settings of a run beside its weights, as objects of whatever library: solo-learn's
    are OmegaConf's. They are not looked at. (An ordered dictionary is what torch's reader lets be filled.)
    """

    def __new__(cls, *_: Any) -> Any:
        return OrderedDict()


def _unpickled(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        shells: list[Any] = [(_Shell, name) for name in names]
        with torch.serialization.safe_globals(shells):
            return torch.load(path, map_location="cpu", weights_only=True)


def match_state_dict(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of that part of a file which has most of the model's names, under these names.

    A part is what goes by one prefix: ``backbone.``, ``module.encoder_q.``, ``student_backbone.`` or any other. Of two
    that have as many, the network that learns comes before its teacher. A ResNet that was taken apart into
    ``nn.Sequential``, as lightly's examples do it, has numbers for names: the places of the model's children.
    """
    found: list[tuple[int, bool, int, dict[str, Tensor]]] = []
    wanted = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    children = [name for name, _ in model.named_children()]
    for spelt in (lambda name: name, lambda name: _numbered(name, children)):
        for prefix in _prefixes(given, [spelt(name) for name in wanted]):
            part = {name[len(prefix) :]: tensor for name, tensor in given.items() if name.startswith(prefix)}
            names = {spelt(name): name for name in model.state_dict()}
            part = {names.get(name, name): tensor for name, tensor in part.items()}
            count = sum(name in part for name in wanted)
            found.append((count, not _TEACHERS.search(prefix), -len(prefix), part))
    return max(found, key=lambda one: one[:3])[3] if found else given


def _prefixes(given: dict[str, Tensor], wanted: list[str]) -> Iterator[str]:
    """What stands in the file before the first of the model's names; before the last, where it lacks the first."""
    for name in wanted[:1] + wanted[-1:]:
        found = {key[: -len(name)] for key in given if key == name or key.endswith(f".{name}")}
        if found:
            yield from sorted(found)
            return


def _numbered(name: str, children: list[str]) -> str:
    first, dot, rest = name.partition(".")
    return f"{children.index(first)}{dot}{rest}" if first in children else name


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
    with atomic_write(path) as partial:  # by ourselves: the library's own writer does not raise the system's error
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
        given = match_state_dict(model, given)
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


def build_backbone(
    images: ImageSet,
    image_size: int,
    config: ResolvedPretrainConfig,
    normal: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Backbone:
    """The backbone as it is before training: initialised by the seed, or from given weights.

    ``normal`` is the mean and the deviation of the channels, where they are known better than by these images.
    """
    mean, std = normal or statistics(images)
    seed_everything(config.seed)
    backbone = Backbone(
        config.backbone,
        channels=images.channels,
        image_size=image_size,
        stem=config.stem,
        mean=mean,
        std=std,
    )
    if config.weights is not None:
        load_weights(backbone.body, config.weights)
    return backbone


def crop_size(images: ImageSet) -> int:
    """The crops' side when none is asked for: small images keep theirs, larger ones were stored for 224."""
    side = min(images.size)
    return side if side <= 112 else round(side * 7 / 8)
