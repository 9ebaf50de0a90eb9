"""Few labels in the report: curves, and how many times the labels a reference needs."""

from pathlib import Path
from typing import Any

import pytest

from glf.reporting.few_labels import few_label_charts, label_factor, labels_needed
from glf.reporting.load import Run
from glf.reporting.page import write_report
from glf.result import read_result, update_result
from reporting.samples import a_run

ACCURACIES = {"pixels": (0.4, 0.6, 0.8), "untrained": (0.3, 0.4, 0.5), "trained": (0.5, 0.7, 0.85)}


def with_few_labels(path: Path, accuracies: dict[str, tuple[float, ...]]) -> Run:
    a_run(path)
    evaluation: dict[str, Any] = read_result(path)["evaluation"]
    for encoder, values in accuracies.items():
        for labels, value in zip((1, 10, 100), values, strict=False):
            key = f"logistic{labels}"
            evaluation["rows"][encoder][key] = value
            evaluation["details"][encoder][key] = {"interval": [value - 0.01, value + 0.01]}
            evaluation["protocols"][key] = f"{labels} labels per class"
            evaluation["percent"] = [*dict.fromkeys([*evaluation["percent"], key])]
    update_result(path, evaluation=evaluation)
    return Run(path, read_result(path))


def test_there_is_a_curve_for_each_encoder(tmp_path: Path) -> None:
    (chart,) = few_label_charts(with_few_labels(tmp_path / "a", ACCURACIES))
    assert {one.name: [(p.x, p.y) for p in one.points] for one in chart.series} == {
        name: [(labels, pytest.approx(100 * value)) for labels, value in zip((1, 10, 100), values, strict=True)]
        for name, values in ACCURACIES.items()
    }
    assert chart.log_x
    assert few_label_charts(Run(a_run(tmp_path / "b"), read_result(tmp_path / "b"))) == []


def test_the_factor_is_read_off_the_curve_of_the_reference(tmp_path: Path) -> None:
    run = with_few_labels(tmp_path / "a", ACCURACIES)  # 0.7 lies half way between 0.6 at 10 and 0.8 at 100
    assert label_factor(run) == ("pixels", 10, pytest.approx(10**0.5), False)
    assert label_factor(run, "untrained") == ("untrained", 10, 10, True), "it never gets there"
    write_report(tmp_path / "a", tmp_path / "page.html")
    text = " ".join((tmp_path / "page.html").read_text().split())
    assert "With 10 labels per class it is as good as raw pixels with about 3.2 times the labels." in text


def test_no_factor_for_a_run_that_is_not_better(tmp_path: Path) -> None:
    run = with_few_labels(tmp_path / "a", {**ACCURACIES, "pixels": (0.6, 0.7, 0.8)})
    assert label_factor(run) is None
    write_report(tmp_path / "a", tmp_path / "page.html")
    assert "times the labels" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("accuracy", "expected"), [(0.1, 1), (0.5, 1), (0.6, 10**0.5), (0.7, 10), (0.8, 100), (0.81, None)]
)
def test_labels_needed(accuracy: float, expected: float | None) -> None:
    assert labels_needed({1: 0.5, 10: 0.7, 100: 0.8}, accuracy) == pytest.approx(expected)
