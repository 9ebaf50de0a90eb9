"""What all configs share: conversion to JSON and back, suggestions for misspelt names."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_args, get_type_hints

import tyro

# An option that is given several times: "--plugin a.py --plugin b.py". What follows a value is not taken for another.
Repeated = tyro.conf.UseAppendAction[tuple[str, ...]]
C = TypeVar("C")
S = TypeVar("S")
P = ParamSpec("P")


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a config to plain JSON types."""
    return {name: _plain(value) for name, value in asdict(config).items()}


def from_dict(kind: type[C], values: Mapping[str, Any]) -> C:
    """Build a config from JSON types; an unknown key is a ValueError that suggests the nearest known one.

    >>> from glf.config.training import PretrainConfig
    >>> from_dict(PretrainConfig, {"epoch": 3})
    Traceback (most recent call last):
    ValueError: unknown configuration key 'epoch' - did you mean 'epochs'?
    """
    hints = get_type_hints(kind)
    known = {f.name: hints[f.name] for f in fields(kind)}  # type: ignore[arg-type]
    inner = groups(kind)
    converted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"unknown configuration key {name!r}{nearest(name, known)}")
        if name in inner and isinstance(value, Mapping):
            value = from_dict(type(inner[name]), {**to_dict(inner[name]), **value})
        elif isinstance(value, list | tuple):
            value = tuple(_path_or_text(one, known[name]) for one in value)
        else:
            value = _path_or_text(value, known[name])
            if isinstance(value, str | Path) and known[name] == tuple[str, ...]:  # one of several, from Python
                value = (str(value),)
        converted[name] = value
    return kind(**converted)


def _path_or_text(value: Any, hint: Any) -> Any:
    """A path where one is asked for, else its text: data and encoders may be names or URLs, too."""
    if isinstance(value, str) and _is_path(hint):
        return Path(value)
    return str(value) if isinstance(value, Path) and hint in (str, str | None, tuple[str, ...]) else value


def _is_path(hint: Any) -> bool:
    """Whether an option is a path; what may be text too, such as a URL, stays as it is."""
    return hint is Path or (Path in get_args(hint) and str not in get_args(hint))


def groups(kind: type[Any]) -> dict[str, Any]:
    """Nested configs, with their defaults; the command line exposes their fields as top-level flags."""
    return {f.name: f.default for f in fields(kind) if is_dataclass(f.default)}


def options_of(kind: Callable[P, C]) -> Callable[[Callable[[S, C], None]], Callable[Concatenate[S, P], None]]:
    """Decorate a constructor that reads a config, so that callers pass the config's fields by name."""

    def decorate(constructor: Callable[[S, C], None]) -> Callable[Concatenate[S, P], None]:
        @wraps(constructor)
        def construct(self: S, *args: P.args, **options: P.kwargs) -> None:
            constructor(self, kind(*args, **options))

        (own, _), given = inspect.signature(constructor).parameters.values(), inspect.signature(kind).parameters
        construct.__signature__ = inspect.Signature([own, *given.values()])  # type: ignore[attr-defined]
        return cast(Callable[Concatenate[S, P], None], construct)

    return decorate


def data_name(data: str) -> str:
    """Return a short name for data, for folders that are named after them.

    >>> data_name("photos/cats.tar"), data_name("hf:user/birds:train?image=img"), data_name("birds.parquet?label=none")
    ('cats', 'birds-train', 'birds')
    """
    if data.startswith("hf:"):
        return re.sub(r"[^\w.-]+", "-", data.partition("?")[0].rpartition("/")[2].removeprefix("hf:"))
    return Path(data.partition("?")[0]).stem or "data"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` - did you mean 'x'?`` if a known name is similar, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" - did you mean {close[0]!r}?" if close else ""


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value
