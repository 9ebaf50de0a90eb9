"""The columns of images and of labels of a table: found by their types and names, or given by the user."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from glf.config.base import nearest
from glf.data.arrays import as_targets
from glf.files import printable

LABEL_NAMES = ("label", "labels", "fine_label", "class", "target")  # the first of these counts
NO_LABELS = "none"
MAX_SHOWN = 12  # columns that a message lists


class Columns(NamedTuple):
    """What is read of a table."""

    image: str
    label: str | None
    names: tuple[str, ...]  # of the classes, if the table has them


def find_columns(schema: pa.Schema, where: str, image: str | None = None, label: str | None = None) -> Columns:
    """Return the columns of a table; ValueError, with what to do, if they are not there or there are several."""
    features = _features(schema)
    image = _given(schema, where, "image", image) or _image_column(schema, features, where)
    if not holds_images(schema.field(image).type):
        raise ValueError(
            f"column {image!r} of {where} has the type {schema.field(image).type}, which is no image: expected bytes of"
            " image files, or paths"
        )
    if label == NO_LABELS:
        return Columns(image, None, ())
    label = _given(schema, where, "label", label) or _label_column(schema, features, where)
    if label is not None and not _holds_labels(schema.field(label).type):
        raise ValueError(
            f"column {label!r} of {where} has the type {schema.field(label).type}, which is no label: expected integers"
            f" or strings, or ?label={NO_LABELS}"
        )
    names = features.get(label or "", {}).get("names")
    known = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return Columns(image, label, tuple(names) if known else ())


def holds_images(kind: pa.DataType) -> bool:
    """Whether the type is one of image files: their bytes, their paths, or a struct of both."""
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" and _is_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return _is_bytes(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def number_labels(
    values: list[Any], others: Iterable[list[Any]], columns: Columns, where: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return targets and class names of the labels of one split, -1 where there is none.

    Classes are numbered over all splits, because one may lack a class. Strings are sorted.
    """
    everything = [values, *others]
    if any(isinstance(value, str) for part in everything for value in part):
        classes = sorted({value for part in everything for value in part if value is not None})
        number = {name: i for i, name in enumerate(classes)}
        return np.array([-1 if value is None else number[value] for value in values], np.int64), tuple(classes)
    if not values:
        return np.full(0, -1, np.int64), columns.names
    try:
        targets = as_targets(_integers(values), len(values))
        top = max((int(_integers(part).max(initial=-1)) for part in everything), default=-1)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column {columns.label!r} of {where}: {error} (?label={NO_LABELS} reads no labels)") from None
    classes = list(columns.names) or [str(i) for i in range(top + 1)]
    if top >= len(classes):
        raise ValueError(
            f"column {columns.label!r} of {where} has the label {top}, but {len(classes)} names of classes"
        )
    return targets, tuple(classes)


def _integers(values: list[Any]) -> NDArray[np.int64]:
    return np.array([-1 if value is None else int(value) for value in values], np.int64)


def _given(schema: pa.Schema, where: str, option: str, name: str | None) -> str | None:
    if name is not None and schema.names.count(name) != 1:
        meant = nearest(name, schema.names) or ":"
        raise ValueError(f"{where} has no column {name!r}{meant} it has {_shown(schema.names)}")
    return name


def _image_column(schema: pa.Schema, features: dict[str, Any], where: str) -> str:
    """The column that is declared to have images, else the only one with bytes."""
    declared = [name for name in schema.names if features.get(name, {}).get("_type") == "Image"]
    structs = [field.name for field in schema if pa.types.is_struct(field.type) and holds_images(field.type)]
    plain = [field.name for field in schema if _is_bytes(field.type)]
    found = declared or structs or plain
    if not found:
        types = [f"{field.name} ({field.type})" for field in schema]
        raise ValueError(f"{where} has no column of images, but {_shown(types)}; ?image=NAME names one")
    if len(found) > 1:
        raise ValueError(f"{where} has several columns of images, {_shown(found)}: add ?image=NAME to choose one")
    return str(found[0])


def _label_column(schema: pa.Schema, features: dict[str, Any], where: str) -> str | None:
    """A column with a usual name, else the only one that is declared to have classes; None if there is neither."""
    declared = [name for name in schema.names if features.get(name, {}).get("_type") == "ClassLabel"]
    usable = declared or [field.name for field in schema if _holds_labels(field.type)]
    named = [name for name in LABEL_NAMES if name in usable]
    if len(declared) > 1 and not named:
        raise ValueError(
            f"{where} has several columns of classes, {_shown(declared)}: add ?label=NAME to choose one, or"
            f" ?label={NO_LABELS}"
        )
    return next(iter(named or declared), None)


def _features(schema: pa.Schema) -> dict[str, Any]:
    """What the library ``datasets`` says about the columns, if it wrote the table."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {str(name): about for name, about in found.items() if isinstance(about, dict)}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _holds_labels(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind)
    )


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return printable(", ".join(names[:MAX_SHOWN])) + more
