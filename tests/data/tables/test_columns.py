"""Which columns have images and labels."""

import json
from typing import Any

import pyarrow as pa
import pytest

from glf.data.tables.columns import Columns, find_columns, number_labels

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
ONE = pa.schema([("image", pa.binary()), ("label", pa.int64()), ("caption", pa.string())])


def declared(schema: pa.Schema, **features: Any) -> pa.Schema:
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def test_columns_are_found_by_type_and_name() -> None:
    assert find_columns(ONE, "t") == Columns("image", "label", ())
    two = pa.schema([("id", pa.int64()), ("audio", pa.binary()), ("picture", IMAGE)])
    assert find_columns(two, "t") == Columns("picture", None, ())


def test_what_datasets_declares_counts_first() -> None:
    schema = pa.schema([("a", IMAGE), ("b", IMAGE), ("label", pa.int64()), ("kind", pa.int64())])
    about = {"b": {"_type": "Image"}, "kind": {"_type": "ClassLabel", "names": ["x", "y"]}}
    assert find_columns(declared(schema, **about), "t") == Columns("b", "kind", ("x", "y"))


def test_given_columns_win() -> None:
    schema = pa.schema([("a", IMAGE), ("b", IMAGE), ("label", pa.int64()), ("other", pa.string())])
    assert find_columns(schema, "t", "b", "other") == Columns("b", "other", ())
    assert find_columns(schema, "t", "a", "none").label is None


def test_several_columns_of_classes_need_a_choice_unless_one_has_the_usual_name() -> None:
    kind = {"_type": "ClassLabel", "names": ["x"]}
    cifar = declared(pa.schema([("i", IMAGE), ("coarse_label", pa.int64()), ("fine_label", pa.int64())]))
    cifar = declared(cifar, coarse_label=kind, fine_label=kind)
    assert find_columns(cifar, "t").label == "fine_label"
    odd = declared(pa.schema([("i", IMAGE), ("hue", pa.int64()), ("size", pa.int64())]), hue=kind, size=kind)
    with pytest.raises(ValueError, match=r"several columns of classes, hue, size: add \?label=NAME"):
        find_columns(odd, "t")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("caption2", None), "no column 'caption2' - did you mean 'caption'"),
        (("label", None), "'label' of t has the type int64, which is no image"),
        ((None, "image"), "'image' of t has the type binary, which is no label"),
    ],
)
def test_a_column_that_is_not_one(given: tuple[str | None, str | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_columns(ONE, "t", *given)


def test_no_image_and_several_images_name_the_columns_and_the_option() -> None:
    with pytest.raises(ValueError, match=r"no column of images, but caption \(string\); \?image=NAME"):
        find_columns(pa.schema([("caption", pa.string())]), "t")
    with pytest.raises(ValueError, match=r"several columns of images, left, right: add \?image=NAME"):
        find_columns(pa.schema([("left", IMAGE), ("right", IMAGE)]), "t")


@pytest.mark.parametrize("note", [b"{", b"[]", b'{"info": {"features": [1]}}', b'{"info": {"features": {"label": 3}}}'])
def test_a_strange_note_of_datasets_means_nothing(note: bytes) -> None:
    assert find_columns(ONE.with_metadata({"huggingface": note}), "t") == Columns("image", "label", ())


def test_labels_are_numbered_over_all_splits() -> None:
    columns = Columns("image", "label", ())
    targets, classes = number_labels(["b", None, "c"], [["a"]], columns, "t")
    assert (targets.tolist(), classes) == ([1, -1, 2], ("a", "b", "c"))
    targets, classes = number_labels([1, None, -1], [[3]], columns, "t")
    assert (targets.tolist(), classes) == ([1, -1, -1], ("0", "1", "2", "3"))
    assert number_labels([True, False], [], columns, "t")[1] == ("0", "1")


@pytest.mark.parametrize("value", [-2, 10**9, 2**63, 2])
def test_labels_out_of_range_name_the_column(value: int) -> None:
    with pytest.raises(ValueError, match="column 'label' of t"):
        number_labels([0, value], [], Columns("image", "label", ("x", "y")), "t")
