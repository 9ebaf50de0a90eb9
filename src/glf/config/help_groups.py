"""Groups of options in the help of the training commands, and the parser that has them.

A config is one flat dataclass, because code and JSON read it best that way. For the command line, ``parse`` gives tyro
the same options in groups, each with a purpose, the common ones first.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, field, fields, make_dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from glf.config.base import groups
from glf.config.training import AdaptConfig, PretrainConfig

Group = tuple[str, tuple[str, ...]]  # purpose, names of the options

PRETRAIN_GROUPS: dict[str, Group] = {
    "data": (
        "The images, and how they are augmented.",
        ("data", "augment", "image_size", "max_images", "val_images", "labels", "root", "download"),
    ),
    "method": ("What is learnt.", ("method", "recipe", "options", "plugin")),
    "ADC": (
        "The added constraint, and the prior that LPM reads.",
        ("adc", "prior", "prior_weights", "prior_width", "prior_size"),
    ),
    "network": (
        "The backbone, and the heads on it.",
        (
            "backbone", "weights", "stem", "whiten_stem", "projector", "projector_norm", "predictor", "local",
            "prototypes", "frozen_prototypes",
        ),
    ),
    "optimisation": (
        "How long and how fast.",
        ("epochs", "batch_size", "lr", "optimizer", "weight_decay", "warmup_epochs", "ema_momentum"),
    ),
    "run": (
        "Where the results go; resuming.",
        ("out", "seed", "logger", "resume", "overwrite", "dry_run", "stop_on_problem"),
    ),
    "hardware": (
        "Devices, processes, memory.",
        (
            "device", "devices", "nodes", "workers", "precision", "accumulate", "checkpoint_activations", "compile",
            "strategy", "sync_norm",
        ),
    ),
    "advanced": (
        "Seldom needed.",
        (
            "auto", "store", "colours", "shuffle", "epoch_images", "bias_lr", "lars_eta", "lars_clip", "probe_every",
            "log_every", "save_minutes", "save_every", "keep",
        ),
    ),
}  # fmt: skip
ADAPT_GROUPS: dict[str, Group] = {
    "encoder": (
        "The pretrained encoder, and which part of it is trained.",
        ("encoder", "backbone", "weights", "train", "tail", "views", "norms", "l2sp", "choose"),
    ),
    **{
        title: (purpose, tuple(name for name in names if name not in ("backbone", "weights")))
        for title, (purpose, names) in PRETRAIN_GROUPS.items()
    },
}
ADAPT_GROUPS["network"] = ("The heads on the encoder.", ADAPT_GROUPS["network"][1])
ADAPT_GROUPS["optimisation"] = ("How long and how fast.", (*ADAPT_GROUPS["optimisation"][1], "head_lr", "head_share"))
GROUPS = {PretrainConfig: PRETRAIN_GROUPS, AdaptConfig: ADAPT_GROUPS}


def parse(config: type[Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    """The options of a command line by name, those of nested configs among the others.

    ``read`` is tyro.cli with its other arguments.
    """
    nested = groups(config)
    own = _options(config)
    options = {name: [own[name]] for name in own if name not in nested}
    options |= {name: list(_options(type(inner), inner).values()) for name, inner in nested.items()}
    titles = GROUPS.get(config)
    if titles is None:
        plain = tuple(name for name in options if name not in nested)
        titles = {"": ("", plain), **{name: (inner.__doc__ or "", (name,)) for name, inner in nested.items()}}
    members: list[Any] = []
    for title, (purpose, names) in titles.items():
        found = [option for name in names for option in options[name]]
        if title:
            kind = make_dataclass(title, found, frozen=True, kw_only=True)
            found = [(title, Annotated[kind, tyro.conf.arg(help=purpose)], field(default_factory=kind))]
        members += found
    values: dict[str, Any] = {}
    for name, value in vars(read(make_dataclass(config.__name__, members, frozen=True, kw_only=True))).items():
        values |= vars(value) if name in titles else {name: value}
    return values


def _options(config: type[Any], start: Any = None) -> dict[str, Any]:
    """Fields of a config with their help, as make_dataclass takes them; ``start`` has other defaults."""
    hints, helps = get_type_hints(config, include_extras=True), option_docs(config)
    found = {}
    for one in fields(config):
        default = one.default if start is None else getattr(start, one.name)
        hint = _documented(one.name, hints[one.name], default, helps.get(one.name, ""))
        found[one.name] = (one.name, hint, field(default=default, default_factory=one.default_factory))
    return found


def _documented(name: str, hint: Any, default: Any, text: str) -> Any:
    """The type of an option with its help, in which None stands for "not given" and is not mentioned."""
    unset = default is MISSING or default is None or default == ()
    shown = "" if unset else f"(default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
    metavar = name.upper() if tyro.conf.Positional in get_args(hint) else _metavar(hint)
    return Annotated[hint, tyro.conf.arg(help=text, help_behavior_hint=shown, metavar=metavar)]


def _metavar(hint: Any) -> str | None:
    """The name of a type that may be None; tyro names all others."""
    if set(get_args(hint)) == {str, Path}:
        return "PATH|URL"
    inner = [one for one in get_args(hint) if one is not NoneType]
    if len(inner) != 1 or NoneType not in get_args(hint):
        return None
    values = get_args(inner[0])
    if get_origin(inner[0]) is tuple:
        return "FLOAT FLOAT" if values == (float, float) else f"[{values[0].__name__.upper()} ...]"
    if get_origin(inner[0]) is Literal:
        return "{" + ",".join(values) + "}"
    return "{True,False}" if inner[0] is bool else str(inner[0].__name__).upper()


def option_docs(config: type[Any]) -> dict[str, str]:
    """The string below each field of a config and of its bases."""
    found: dict[str, str] = {}
    for one in reversed(config.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(body, ast.ClassDef)
        for here, below in pairwise(body.body):
            match here, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found
