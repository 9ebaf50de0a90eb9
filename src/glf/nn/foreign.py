"""Weights as others save them: wrapped, prefixed, beside heads and teachers. Nothing that is read can execute code."""

import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

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


def named_as(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
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
