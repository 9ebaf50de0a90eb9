"""Tables of a comparison: values, paired differences, gaps and notes."""

from typing import Any

import pytest

from glf.reporting.study_charts import progress_charts
from glf.reporting.study_tables import EXPLANATION, markdown, mean_cell, study_tables

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
    how = {"protocols": {"linear": "linear probe", "knn5": "k-NN (k = 5)"}, "test": 9, "train": 99, "split": "test"}
    return {**about, **where, "evaluated": {"d": how}, "variants": {"none": {}, "adc": {}}, "runs": runs, **changed}


def texts(content: dict[str, Any]) -> dict[str, list[list[str]]]:
    """The tables by title, cells as in Markdown."""
    return {title: [[str(cell) for cell in row] for row in rows] for title, rows in study_tables(content)}


def difference(base: dict[int, float], other: dict[int, float]) -> str:
    """The cell of a variant with these accuracies by seed."""
    runs = [
        {"data": "d", "method": "m", "variant": name, "seed": seed, "values": {"linear": value / 100}}
        for name, values in (("base", base), ("other", other))
        for seed, value in values.items()
    ]
    found = texts(
        {"data": ["d"], "methods": ["m"], "base": "base", "variants": {"base": {}, "other": {}}, "runs": runs}
    )
    return found["d, linear probe"][1][2]


def test_a_table_per_metric_with_the_base_first() -> None:
    found = texts(content())
    assert list(found) == ["d, linear probe", "d, k-NN (k = 5)"]
    head, row = found["d, linear probe"]
    assert head == ["method", "none", "+ adc"]
    assert row == ["simclr", "51.0 ± 1.0 (3)", "53.0, +2.00 [1.50, 2.50] (3)"]


def test_a_variant_is_compared_with_another_one_too() -> None:
    head, row = texts(content(versus={"none": "adc"}))["d, linear probe"]
    assert head[-1] == "none over adc"
    assert row[-1] == "-2.00 [-2.50, -1.50] (3)"


def test_many_variants_of_one_method_are_rows() -> None:
    many = {name: {} for name in ("none", "adc", "x", "y", "z")}
    references = {"d": {"pixels": {"0": {"linear": 0.25}}}}
    found = texts(content(variants=many, references=references, versus={"adc": "none"}))
    assert found == {
        "d": [
            ["simclr", "linear probe", "k-NN (k = 5)"],
            ["(pixels)", "25.0 (1)", "-"],
            ["none", "51.0 ± 1.0 (3)", "25.5 ± 0.5 (3)"],
            ["+ adc", "53.0, +2.00 [1.50, 2.50] (3)", "26.5, +1.00 [0.75, 1.25] (3)"],
            *([f"+ {name}", "-", "-"] for name in "xyz"),
            ["adc over none", "+2.00 [1.50, 2.50] (3)", "+1.00 [0.75, 1.25] (3)"],
        ]
    }
    assert len(study_tables(content(variants=many, methods=["simclr", "byol"]))) == 2


def test_only_seeds_that_both_have_are_compared() -> None:
    assert difference({0: 50.0, 1: 60.0, 2: 70.0}, {0: 51.0, 2: 71.0}) == "61.0, +1.00, n.s. [1.00, 1.00] (2)"
    assert difference({0: 50.0}, {0: 51.0}) == "51.0, +1.00, n.s. (1)"
    assert difference({0: 50.0}, {1: 51.0}) == "-"
    assert mean_cell({}).text == "-"


@pytest.mark.parametrize("values", [{0: 51.0, 1: 52.0, 2: 50.0}, {0: 50.1, 1: 51.8, 2: 51.3}])
def test_an_interval_that_contains_zero_is_not_significant(values: dict[int, float]) -> None:
    assert "n.s." in difference({0: 50.0, 1: 52.0, 2: 51.0}, values)


def test_missing_runs_are_gaps_and_failed_runs_are_listed() -> None:
    text = markdown(content(runs=[], evaluated={}))
    assert "| simclr | - | - |" in text
    assert "- failed: d/x/0: no & no" in text


def test_every_table_is_explained() -> None:
    text = markdown(content())
    assert text.count(EXPLANATION) == 1
    assert "d: linear probe, k-NN (k = 5); probes trained on 99 images and evaluated on 9 (split: test)." in text


def test_every_kind_of_machine_is_named() -> None:
    assert "`glf compare`; P, 2 cores; torch 2." in markdown(content())
    runs = content()["runs"]
    elsewhere = {**runs[0], "machine": {"processor": "Q", "cores": 8}}
    assert "`glf compare`; Q, 8 cores and P, 2 cores; torch 2." in markdown(content(runs=[elsewhere, *runs[1:]]))


def test_references_without_labels_leave_gaps() -> None:
    references = {"d": {"pixels": {"0": {"linear": 0.25}, "1": {}}}}
    found = texts(content(references=references))
    assert found["d, linear probe"][1] == ["(pixels)", "25.0 (1)", ""]
    assert found["d, k-NN (k = 5)"][1] == ["(pixels)", "-", ""]


def runs_with_curves() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = content()["runs"]
    for run in runs:
        points = [(0.25, run["values"]["linear"] - 0.3), (0.5, 0.4), (1.0, run["values"]["linear"])]
        run["curves"] = {"val/linear": points}
    return runs


def test_the_online_probe_during_training() -> None:
    runs = runs_with_curves()
    found = texts(content(runs=runs))
    (title,) = [title for title in found if "during training" in title]
    head, none, adc = found[title]
    assert head == ["simclr", *(f"{share} % of training" for share in (10, 25, 50, 75, 100))]
    assert none[2:4] == ["21.0 ± 1.0 (3)", "40.0 ± 0.0 (3)"]
    assert adc[3] == "40.0 ± 0.0 (3), +0.00, n.s. [0.00, 0.00] (3)"
    assert adc[5].startswith("53.0 ± 1.1 (3), +2.00 [1.50")
    del runs[0]["curves"]
    assert "(2)" in texts(content(runs=runs))[title][1][1]
    assert not any("during" in title for title in texts(content()))


def test_the_chart_of_differences_during_training() -> None:
    runs = runs_with_curves()
    (chart,) = progress_charts(content(runs=runs))
    (series,) = chart.series
    assert (chart.key, series.name) == ("progress-d-simclr-val-linear", "adc")
    assert [round(point.x) for point in series.points] == [25, 50, 100]
    assert [round(point.y, 3) for point in series.points] == [2.0, 0.0, 2.0]
    end = series.points[-1]
    assert end.low == pytest.approx(1.5033, abs=1e-3)
    assert end.high == pytest.approx(2.4967, abs=1e-3)
    for run in runs:
        run["curves"] = {"val/linear": [(1.0, 0.5)]} if run["variant"] == "adc" else run["curves"]
    assert progress_charts(content(runs=runs)) == [], "a single measurement is no curve"
