"""Save, load and build backbones, and read state dicts written by other libraries. Reading never executes code.

A saved backbone is a safetensors file: the body's weights under the names of its own library (timm, torchvision), and
the arguments of ``Backbone`` in the metadata. Files of other tools (lightly, solo-learn, Lightning, torch.save) may
wrap the state dict, prefix its names, and contain heads and EMA teachers next to the backbone; ``load_weights`` finds
the backbone.
"""

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

from glf.config.training import ResolvedPretrainConfig
from glf.data.decode import SMALL, crop_side
from glf.data.images import ImageSet, statistics
from glf.device import seed_everything
from glf.files import atomic_write
from glf.nn.backbone import Backbone
from glf.nn.whitening import whiten_stem
from glf.runfiles import BACKBONE

_WRAPPERS = ("state_dict", "model", "model_state", "model_state_dict")
_HEADS = (
    "fc.", "_fc.", "classifier.", "head.", "heads.",
    "projector.", "projection_head.", "predictor.", "prediction_head.", "prototypes.",
)  # fmt: skip
_TEACHERS = re.compile(r"momentum|teacher|target|ema|shadow|encoder_k")  # in the prefix of an EMA teacher's weights


def build_backbone(
    images: ImageSet,
    image_size: int,
    config: ResolvedPretrainConfig,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Backbone:
    """Build the backbone as it is before training: initialised from the seed, or from ``config.weights``.

    ``normalisation`` is the mean and standard deviation of each channel; by default those of the images.
    """
    mean, std = normalisation or statistics(images)
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
    if config.whiten_stem:
        whiten_stem(backbone, images)
    return backbone


def crop_size(images: ImageSet) -> int:
    """The default side of the crops: small images are used whole, larger ones are stored with a margin."""
    side = min(images.size)
    return side if side <= SMALL else crop_side(side)


def body_state(backbone: Backbone) -> dict[str, Tensor]:
    """The body's weights under the names of its own library."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in backbone.body.state_dict().items()}


def save_backbone(backbone: Backbone, path: Path, **metadata: str) -> None:
    """Write the body's weights; the metadata of the file contains the arguments of ``Backbone`` and ``metadata``."""
    content = save(body_state(backbone), metadata={"format": "pt", "glf": json.dumps(backbone.describe()), **metadata})
    with atomic_write(path) as partial:  # not by safetensors' save_file, which hides the system's error
        partial.write_bytes(content)


def load_backbone(path: Path) -> Backbone:
    """Load the backbone of a run directory, or of a file written by ``save_backbone``."""
    file, description = check_backbone(path)
    try:  # the description may come from anywhere, so it may be anything
        given = json.loads(description).items()
        arguments: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in given}
        backbone = Backbone(**arguments)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{file} describes a backbone that cannot be built ({error})") from error
    load_weights(backbone.body, file)
    return backbone


def check_backbone(path: Path) -> tuple[Path, str]:
    """Return the file of a saved backbone and its description, without loading the weights."""
    file = path / BACKBONE if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"no backbone at {file}: is {path} the directory of a finished run?")
    try:
        with safe_open(file, framework="pt") as opened:
            description = (opened.metadata() or {}).get("glf")
    except SafetensorError as error:
        raise ValueError(f"{file} is not a safetensors file ({error}): give a run directory") from error
    if description is None:
        raise ValueError(
            f"{file} was not written by glf and does not describe its model: give the model's name, and this file with"
            " --weights"
        )
    return file, description


def load_weights(model: nn.Module, path: Path, *, by_order: bool = False) -> None:
    """Load weights from a file into a model. Heads in the file are ignored; all other tensors must match.

    ``by_order`` pairs tensors by their order instead of their names, for a file with the names of another library.
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
            f"{path} has {len(surplus)} tensors that the model lacks, first {surplus[0]!r}: is it another model?"
        )
    for name, tensor in wanted.items():
        if name in given and given[name].shape != tensor.shape:
            shapes = f"{tuple(given[name].shape)}, the model's {tuple(tensor.shape)}"
            raise ValueError(f"{path}: {name} has shape {shapes} (another stem or another number of channels?)")
    model.load_state_dict({name: given.get(name, tensor) for name, tensor in wanted.items()})


def match_state_dict(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors with the one prefix that covers most of the model's names, and strip that prefix.

    The prefix may be ``backbone.``, ``module.encoder_q.``, ``student_backbone.`` or any other. If two cover equally
    many names, the trained network is preferred to its EMA teacher. If the children of a ResNet were put
    into ``nn.Sequential``, as in lightly's examples, names have their positions instead; both spellings are tried.
    """
    found: list[tuple[int, bool, int, dict[str, Tensor]]] = []
    wanted = [name for name in model.state_dict() if not name.endswith("num_batches_tracked")]
    children = [name for name, _ in model.named_children()]
    for spelt in (lambda name: name, lambda name: _by_position(name, children)):
        for prefix in _prefixes(given, [spelt(name) for name in wanted]):
            part = {name[len(prefix) :]: tensor for name, tensor in given.items() if name.startswith(prefix)}
            names = {spelt(name): name for name in model.state_dict()}
            part = {names.get(name, name): tensor for name, tensor in part.items()}
            count = sum(name in part for name in wanted)
            found.append((count, not _TEACHERS.search(prefix), -len(prefix), part))
    return max(found, key=lambda one: one[:3])[3] if found else given


def _by_position(name: str, children: list[str]) -> str:
    first, dot, rest = name.partition(".")
    return f"{children.index(first)}{dot}{rest}" if first in children else name


def _prefixes(given: dict[str, Tensor], wanted: list[str]) -> Iterator[str]:
    """Prefixes of the model's first name in the file; of its last name if the file lacks the first."""
    for name in wanted[:1] + wanted[-1:]:
        found = {key[: -len(name)] for key in given if key == name or key.endswith(f".{name}")}
        if found:
            yield from sorted(found)
            return


def check_weights(path: Path) -> None:
    """Raise if there is no such file, before anything that takes long."""
    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}: give a .safetensors, .pt, .pth or .ckpt file")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file or of a file written by torch.save, under the names they have there."""
    check_weights(path)
    try:
        loaded: Any = load_file(path) if path.suffix == ".safetensors" else _unpickle(path)
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
    """Replaces every class and function that a file names: called with anything, it returns an empty dictionary.

    Lightning's checkpoints contain the hyperparameters of a run as objects of any library, e.g. OmegaConf in
    solo-learn's. They are not needed. (An ordered dictionary, because torch's restricted reader can fill one.)
    """

    def __new__(cls, *_: Any) -> Any:
        return OrderedDict()


def _unpickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        shells: list[Any] = [(_Shell, name) for name in names]
        with torch.serialization.safe_globals(shells):
            return torch.load(path, map_location="cpu", weights_only=True)
