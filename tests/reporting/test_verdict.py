"""The verdict: green only for healthy runs that are significantly better than both baselines."""

from pathlib import Path
from typing import Any

import pytest

from glf.reporting.load import Run, find_runs
from glf.reporting.page import write_report
from glf.reporting.verdict import comparison_verdict, kept_weights, run_verdict
from glf.result import read_result, update_result
from reporting.samples import a_comparison, a_run, an_adapted_run

FINDING = {"name": "constant collapse", "since": 12, "why": "w", "evidence": "e", "advice": "a"}


def changed_run(path: Path, values: dict[str, tuple[float, float, float] | None]) -> Run:
    """A sample run with other k-NN accuracies (value, low, high) of some encoders; None removes an encoder."""
    a_run(path)
    evaluation = read_result(path)["evaluation"]
    for encoder, found in values.items():
        if found is None:
            del evaluation["rows"][encoder]
        else:
            evaluation["rows"][encoder]["knn5"] = found[0]
            evaluation["details"][encoder]["knn5"]["interval"] = found[1:]
    update_result(path, evaluation=evaluation)
    return Run(path, read_result(path))


def test_better_than_both_baselines_is_green(tmp_path: Path) -> None:
    found = run_verdict(changed_run(tmp_path / "a", {}))
    assert found == ("good", "healthy", {"knn5": {"pixels": "above", "untrained": "above"}}, ())


@pytest.mark.parametrize(
    ("values", "standing"),
    [
        ({"pixels": (0.61, 0.585, 0.635)}, {"pixels": "level", "untrained": "above"}),
        ({"untrained": (0.61, 0.585, 0.635)}, {"pixels": "above", "untrained": "level"}),
        ({"pixels": (0.7, 0.68, 0.72)}, {"pixels": "below", "untrained": "above"}),
        ({"pixels": None}, {"untrained": "above"}),
        ({"pixels": None, "untrained": None}, {}),
    ],
)
def test_not_significantly_better_than_both_baselines_is_neutral(
    values: dict[str, Any], standing: dict[str, str], tmp_path: Path
) -> None:
    found = run_verdict(changed_run(tmp_path / "a", values))
    assert found == ("fair", "healthy", {"knn5": standing}, ())


def test_the_page_is_not_green_for_a_run_that_is_level_with_raw_pixels(tmp_path: Path) -> None:
    changed_run(tmp_path / "a", {"pixels": (0.61, 0.585, 0.635)})
    write_report(tmp_path / "a", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert '<p class="verdict fair">' in text
    assert "not significantly different from raw pixels (61.0 %)" in text


def test_a_run_that_was_evaluated_alone_says_so(tmp_path: Path) -> None:
    changed_run(tmp_path / "a", {"pixels": None, "untrained": None})
    write_report(tmp_path / "a", tmp_path / "page.html")
    assert "Evaluated without references. To do next: glf evaluate" in (tmp_path / "page.html").read_text()


def further_accuracies(path: Path, key: str, values: dict[str, tuple[float, float, float]]) -> Run:
    """A sample run with one more accuracy (value, low, high) of each encoder."""
    evaluation = read_result(changed_run(path, {}).path)["evaluation"]
    evaluation["protocols"][key] = f"protocol of {key}"
    evaluation["percent"].append(key)
    for encoder, found in values.items():
        evaluation["rows"][encoder][key] = found[0]
        evaluation["details"][encoder][key] = {"interval": found[1:]}
    update_result(path, evaluation=evaluation)
    return Run(path, read_result(path))


@pytest.mark.parametrize(
    ("key", "pixels", "mood", "below"),
    [
        ("linear", (0.6, 0.58, 0.62), "good", ()),
        ("linear", (0.69, 0.67, 0.71), "fair", ()),  # level, and among the first two
        ("nearest10", (0.69, 0.67, 0.71), "good", ()),  # level, further down
        ("nearest10", (0.8, 0.78, 0.82), "fair", ("protocol of nearest10: pixels",)),
    ],
)
def test_every_accuracy_counts(
    key: str, pixels: tuple[float, float, float], mood: str, below: tuple[str, ...], tmp_path: Path
) -> None:
    values = {"pixels": pixels, "untrained": (0.5, 0.48, 0.52), "trained": (0.7, 0.68, 0.72)}
    found = run_verdict(further_accuracies(tmp_path / "a", key, values))
    assert (found.mood, found.below) == (mood, below)
    write_report(tmp_path / "a", tmp_path / "page.html")
    text = " ".join((tmp_path / "page.html").read_text().split())
    assert ("Below a reference: protocol of nearest10: pixels." in text) == bool(below)
    assert ("To try next: more epochs" in text) == (mood == "fair")


def test_problems_are_red_and_unexamined_runs_are_neutral(tmp_path: Path) -> None:
    run = changed_run(tmp_path / "a", {})
    assert run_verdict(Run(run.path, {**run.content, "doctor": [FINDING]}))[:2] == ("bad", "unhealthy")
    assert run_verdict(Run(run.path, {**run.content, "doctor": None}))[:2] == ("fair", "not examined")
    assert run_verdict(Run(run.path, {**run.content, "evaluation": {}})) == ("fair", "healthy", {}, ())


def adapted_run(path: Path, *arguments: Any, **changed: Any) -> Run:
    return Run(an_adapted_run(path, *arguments, **changed), read_result(path))


def test_the_frozen_encoder_is_the_baseline_of_an_adapted_run(tmp_path: Path) -> None:
    run = adapted_run(tmp_path / "a")
    assert run_verdict(run) == ("good", "healthy", {"knn5": {"pixels": "above", "frozen": "above"}}, ())
    level = run.content["evaluation"]
    level["rows"]["frozen"]["knn5"], level["details"]["frozen"]["knn5"]["interval"] = 0.61, [0.585, 0.635]
    assert run_verdict(run) == ("fair", "healthy", {"knn5": {"pixels": "above", "frozen": "level"}}, ())
    without = {**run.content, "adaptation": {}}  # of glf evaluate --out elsewhere
    assert run_verdict(Run(run.path, without)).mood == "fair"
    assert run_verdict(Run(run.path, {**run.content, "doctor": [FINDING]})).mood == "bad"


@pytest.mark.parametrize(
    ("chosen", "val", "labelled", "mood"),
    [
        ("average 0.75", 2000, True, "good"),  # 82.2 % and 86.3 %: intervals of +-1.7 and +-1.5 points
        ("average 0.75", 1000, True, "fair"),
        ("frozen", 1000, True, "fair"),
        ("average 0.75", 1000, False, "fair"),
    ],
)
def test_without_an_evaluation_an_adapted_run_is_judged_by_its_held_out_images(
    chosen: str, val: int, labelled: bool, mood: str, tmp_path: Path
) -> None:
    run = adapted_run(tmp_path / "a", chosen, labelled=labelled, evaluation=None, data={"name": "d", "val": val})
    assert run_verdict(run).mood == mood
    kept = kept_weights(run)
    assert kept is not None
    assert kept.images == val
    assert (kept.accuracy is not None) == labelled


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        (("0.1",), ("good", 2, 2, 0)),
        (("10",), ("bad", 2, 0, 2)),
        (("1",), ("fair", 2, 0, 0)),
        (("0.1", "10"), ("fair", 4, 2, 2)),
    ],
)
def test_a_comparison_is_green_for_gains_alone(
    variants: tuple[str, ...], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    a_comparison(tmp_path / "c", variants={"none": {}, **{name: {} for name in variants}})
    _, (comparison,) = find_runs(tmp_path)
    found = comparison_verdict(comparison.content)
    assert found[:4] == expected
    assert (found.largest is None) == (variants == ("1",))
