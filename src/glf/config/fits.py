"""Whether a value fits a type, as far as options and JSON files need it, and in words what it should be instead."""

from collections.abc import Mapping
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

_KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    Path: (str | PathLike, "a path"),
    NoneType: (NoneType, "nothing"),
    dict: (Mapping, "a table of names and values"),
    list: (list | tuple, "a list"),
}


def misfit(value: Any, hint: Any) -> str:
    """What a value should be instead of what it is, in words; empty if it fits the type.

    >>> misfit(3, int), misfit("3", int | None), misfit([1, "2"], list[int])
    ('', 'a whole number', 'a list, each entry a whole number')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        found = [misfit(value, one) for one in arguments]
        return "" if "" in found else " or ".join(text for text in found if text != "nothing")
    if origin is Literal:
        return "" if value in arguments else f"one of {', '.join(map(str, arguments))}"
    if origin in (tuple, list):
        if not isinstance(value, tuple | list):
            return "a list"
        many = origin is list or arguments[-1] is Ellipsis
        if not many and len(value) != len(arguments):
            return f"a list of {len(arguments)}"
        texts = (misfit(one, arguments[0 if many else at]) for at, one in enumerate(value))
        return next((f"a list, each entry {text}" for text in texts if text), "")
    if origin is dict:
        if not isinstance(value, Mapping):
            return "a table of names and values"
        texts = (misfit(name, arguments[0]) or misfit(one, arguments[1]) for name, one in value.items())
        return next((f"a table, each value {text}" for text in texts if text), "")
    if is_typeddict(hint):
        return "a table with other entries" if wrong_key(value, hint) else ""
    kind, text = _KINDS.get(hint, (object, ""))
    wrong_bool = isinstance(value, bool) and hint in (int, float)
    return "" if isinstance(value, kind) and not wrong_bool else text


def wrong_key(value: Any, hint: Any) -> str:
    """The first key of a JSON object that does not fit its type, with what it should be; empty if all fit.

    Keys that the type does not have are not looked at.

    >>> from typing import TypedDict
    >>> wrong_key({"runs": [{"seed": "x"}]}, TypedDict("T", {"runs": list[TypedDict("R", {"seed": int})]}))
    'runs.0.seed must be a whole number'
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, bounds = arguments
        text = misfit(value, kind) or bounds.violated(value)
        return text and f"must be {text}"
    if is_typeddict(hint):
        if not isinstance(value, Mapping):
            return "must be a table of names and values"
        if missing := hint.__required_keys__ - value.keys():
            return f"{min(missing)} is missing"
        inner = [
            (name, value[name], one) for name, one in get_type_hints(hint, include_extras=True).items() if name in value
        ]
    elif origin is dict and isinstance(value, Mapping):
        inner = [(str(name), one, arguments[1]) for name, one in value.items()]
    elif origin is list and isinstance(value, list):
        inner = [(str(at), one, arguments[0]) for at, one in enumerate(value)]
    elif text := misfit(value, hint):
        return f"must be {text}"
    else:
        return ""
    for name, one, kind in inner:
        if text := wrong_key(one, kind):
            return f"{name}.{text}" if text[0].isalnum() and not text.startswith("must ") else f"{name} {text}"
    return ""
