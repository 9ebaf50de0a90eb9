"""The tables say what the runs say, and no more than they show."""

from typing import Any

import pytest

from glf.reporting.study_tables import difference, markdown, spread, tables

VALUES = {
    ("none", 0): 0.50,
    ("none", 1): 0.52,
    ("none", 2): 0.51,
    ("adc", 0): 0.52,
    ("adc", 1): 0.542,
    ("adc", 2): 0.528,
}
HERE = {"machine": {"processor": "P", "cores": 2}}


def content(**changed: Any) -> dict[str, Any]:
    runs = [
        {
            "data": "d",
            "method": "simclr",
            "variant": variant,
            "seed": seed,
            "values": {"linear": v, "knn5": v / 2},
            **HERE,
        }
        for (variant, seed), v in VALUES.items()
    ]
    about = {"title": "A <study>", "methods": ["simclr"], "data": ["d"], "base": "none", "failed": {"d/x/0": "no & no"}}
    where = {**HERE, "versions": {"torch": "2"}, "command": "glf compare"}
    how = {"protocols": {"linear": "linear probe", "knn5": "5-nn"}, "test": 9, "train": 99, "split": "test"}
    return {**about, **where, "evaluated": {"d": how}, "variants": {"none": {}, "adc": {}}, "runs": runs, **changed}


def test_a_table_per_metric_with_the_base_first() -> None:
    found = dict(tables(content()))
    assert list(found) == ["d, linear probe", "d, 5-nn"]
    head, row = found["d, linear probe"]
    assert head == ["", "none", "+ adc"]
    assert row == ["simclr", "51.0 ± 1.0 (3)", "53.0, +2.00 [1.50, 2.50] (3)"]


def test_a_variant_is_held_against_another_one_too() -> None:
    head, row = dict(tables(content(versus={"none": "adc"})))["d, linear probe"]
    assert head[-1] == "none over adc"
    assert row[-1] == "-2.00 [-2.50, -1.50] (3)"


def test_many_variants_of_one_method_stand_below_each_other() -> None:
    many = {name: {} for name in ("none", "adc", "x", "y", "z")}
    references = {"d": {"pixels": {"0": {"linear": 0.25}}}}
    (found,) = tables(content(variants=many, references=references, versus={"adc": "none"}))
    assert found == (
        "d",
        [
            ["simclr", "linear probe", "5-nn"],
            ["(pixels)", "25.0 (1)", "-"],
            ["none", "51.0 ± 1.0 (3)", "25.5 ± 0.5 (3)"],
            ["+ adc", "53.0, +2.00 [1.50, 2.50] (3)", "26.5, +1.00 [0.75, 1.25] (3)"],
            *([f"+ {name}", "-", "-"] for name in "xyz"),
            ["adc over none", "+2.00 [1.50, 2.50] (3)", "+1.00 [0.75, 1.25] (3)"],
        ],
    )
    assert len(list(tables(content(variants=many, methods=["simclr", "byol"])))) == 2


def test_only_seeds_that_both_have_are_compared() -> None:
    assert difference({0: 50.0, 1: 60.0, 2: 70.0}, {0: 51.0, 2: 71.0}) == "61.0, +1.00, not shown [1.00, 1.00] (2)"
    assert difference({0: 50.0}, {0: 51.0}) == "51.0, +1.00, not shown (1)"
    assert difference({0: 50.0}, {1: 51.0}) == "-"
    assert spread({}) == "-"


@pytest.mark.parametrize("values", [{0: 51.0, 1: 52.0, 2: 50.0}, {0: 50.1, 1: 51.8, 2: 51.3}])
def test_an_interval_that_includes_zero_is_no_win(values: dict[int, float]) -> None:
    assert "not shown" in difference({0: 50.0, 1: 52.0, 2: 51.0}, values)


def test_missing_runs_are_gaps_and_failures_are_listed() -> None:
    text = markdown(content(runs=[], evaluated={}))
    assert "| simclr | - | - |" in text
    assert "- failed: d/x/0: no & no" in text


def test_every_kind_of_machine_is_named() -> None:
    assert "`glf compare`; P, 2 cores; torch 2." in markdown(content())
    runs = content()["runs"]
    elsewhere = {**runs[0], "machine": {"processor": "Q", "cores": 8}}
    assert "`glf compare`; Q, 8 cores and P, 2 cores; torch 2." in markdown(content(runs=[elsewhere, *runs[1:]]))


def test_references_without_labels_leave_gaps() -> None:
    references = {"d": {"pixels": {"0": {"linear": 0.25}, "1": {}}}}
    found = dict(tables(content(references=references)))
    assert found["d, linear probe"][1] == ["(pixels)", "25.0 (1)", ""]
    assert found["d, 5-nn"][1] == ["(pixels)", "-", ""]
