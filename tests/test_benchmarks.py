"""Stored benchmark results are consistent with the pages, and found by the present code."""

import itertools
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from rich.console import Console

from glf.comparison.conduct import conduct
from glf.comparison.runs import reference_key, run_key
from glf.comparison.study import Cell, Study
from glf.measure.intervals import t_interval

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import all_methods  # noqa: E402
import machines  # noqa: E402
import outliers  # noqa: E402
import pages  # noqa: E402
from speed.__main__ import page  # noqa: E402 (the folder is no package of glf)
from speed.timing import Row, interleaved  # noqa: E402


def test_the_speed_page_follows_from_the_stored_results() -> None:
    found = json.loads((BENCHMARKS / "results" / "speed.json").read_text())
    assert page(found) == (BENCHMARKS / "SPEED.md").read_text()
    assert {"machine", "versions", "command", "images", "photos"} <= found.keys()
    assert set(found["parts"]) == {
        "augmentation",
        "photos",
        "loops",
        "processes",
        "pairs",
        "evaluation",
        "probes",
        "recomputation",
        "adaptation",
    }


def test_the_table_of_methods_follows_from_the_stored_results() -> None:
    """A method without results is not an error: the page says "not run yet"."""
    found = json.loads((BENCHMARKS / "results" / "all_methods.json").read_text())
    measured = all_methods.rows(found)
    assert all_methods.page(found) in (BENCHMARKS / "RESULTS.md").read_text(), "python benchmarks/pages.py"
    assert measured.keys() <= {*all_methods.REFERENCES, *all_methods.SPECS}, "a method no longer exists"
    reference = max(mean(row["knn5"] for row in measured[name]) for name in all_methods.REFERENCES)
    below = {name for name in measured if mean(row["knn5"] for row in measured[name]) < reference}
    assert below - {*all_methods.REFERENCES} <= all_methods.WHY.keys(), "the page has no reason for a method below them"
    fewer = {**found, "runs": [run for run in found["runs"] if run["method"] != "byol"]}
    assert "| byol | not run yet |" in all_methods.page(fewer)


def test_the_runs_of_all_methods_are_found_by_their_keys() -> None:
    """Else they would be run again. Three seeds have an interval, one has none."""
    found = {run["key"]: run for run in json.loads((BENCHMARKS / "results" / "all_methods.json").read_text())["runs"]}
    for study in all_methods.studies("cifar10.tar"):
        for cell in study.cells():
            run = found.pop(run_key(*study.configs(cell)), None)
            assert run is None or (run["method"], run["seed"]) == (cell.method, cell.seed)
    assert not found, "runs that no study asks for"
    values = [{"knn5": 0.1}, {"knn5": 0.2}, {"knn5": 0.3}]
    assert all_methods.cell(values, "knn5", 1, 100) == "20.0 ± 24.8"
    assert all_methods.cell(values[:1], "knn5", 1, 100) == "10.0"


def test_the_pages_follow_from_the_stored_studies() -> None:
    assert pages.results() == pages.PAGE.read_text(), "python benchmarks/pages.py"
    text = pages.README.read_text()
    assert pages.readme(text) == text, "python benchmarks/pages.py"
    drawn = {
        path: svg
        for name, one in pages.stored()
        if pages.is_shown(one)
        for path, (_, svg) in pages.figures(name, one).items()
    }
    assert {path: path.read_text() for path in pages.FIGURES.glob("*")} == drawn, "python benchmarks/pages.py"
    for name in ("headline", "demo"):
        mark = pages.START.format(name)
        by_hand = text.replace(mark, f"{mark}\nADC always wins.")
        assert by_hand != text
        assert pages.readme(by_hand) == text


def test_the_demo_beats_its_references_in_every_accuracy() -> None:
    """By more than the half-widths of both intervals over the seeds."""
    content = dict(pages.stored())["demo"]
    assert not pages.runs_missing(content)
    values = pages.demo_values(content)
    for reference, metric in itertools.product(("pixels", "untrained"), values["simclr"]):
        for method in ("simclr", "simclr+adc"):
            low = t_interval(values[method][metric])[1]
            assert low > t_interval(values[reference][metric])[2], (method, reference, metric)


def test_studies_are_shown_once_they_have_a_finding() -> None:
    written = pages.results()
    for name, content in pages.stored():
        assert not content["failed"], name
        made = {(run["data"], run["method"], run["variant"], run["seed"]) for run in content["runs"]}
        assert len(made) == len(content["runs"]), name
        assert not any(Path(data).is_absolute() for data in content["data"]), name
        asked = set(
            itertools.product(content["data"], content["methods"], content["variants"], range(content["seeds"]))
        )
        assert made <= asked, name
        assert pages.runs_missing(content) == len(asked - made), name
        assert pages.is_shown(content) == (f"## {content['title']}\n" in written), name
        assert pages.is_shown(content) or made < asked, f"{name} is complete, but has no finding"
        assert ("Under way" in pages.said(content)) == (made < asked), name


def test_the_prior_is_in_the_tables_of_the_studies_that_use_it() -> None:
    stored = json.loads(pages.PRIOR.read_text())
    content = dict(pages.stored())["headline"]
    data = stored["data"]
    assert set(content["references"][data]["prior"]) == {str(seed) for seed in range(content["seeds"])}
    assert "| (prior) |" in pages.section("headline", content)
    alone = {**content, "references": {data: {"pixels": {}}}}
    assert set(pages.with_prior({**alone, "seeds": 1})["references"][data]["prior"]) == {"0"}
    several = pages.with_prior({**alone, "variants": {"none": {"prior": "pixels"}, "adc": {}}})
    assert set(several["references"][data]) == {"pixels", "prior of adc"}
    held_out = {data: {**content["evaluated"][data], "split": "held-out part of train"}}
    for other in ({"settings": {"prior": "pixels"}}, {"evaluated": held_out}, {"evaluated": {}}):
        assert "prior" not in pages.with_prior({**alone, **other})["references"][data]


@pytest.mark.parametrize("name", sorted(name for name, _ in pages.stored()))
def test_stored_runs_are_found_by_their_keys(name: str) -> None:
    """Else they would be run again: the keys are those that the present code computes for the study."""
    content = json.loads((pages.RESULTS / f"{name}.json").read_text())
    data = tuple(content["data"])
    study = outliers.study("cifar10.tar", data) if name == "outliers" else replace(pages.study_of(name), data=data)
    keys = {cell: study.configs(cell) for cell in study.cells()}
    for run in content["runs"]:
        configs = keys[Cell(run["data"], run["method"], run["variant"], run["seed"])]
        assert (run["key"], run["reference"]) == (run_key(*configs), reference_key(*configs)), run["path"]


@pytest.mark.usefixtures("quick_workers")
def test_a_study_reuses_the_runs_of_another(
    few_images: str, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    settings = {"batch_size": 32, "epochs": 1, "val_images": 0, "image_size": 16}
    one = Study(
        title="One",
        methods=("simclr",),
        data=(few_images,),
        seeds=1,
        base="none",
        variants={"none": {}},
        settings=settings,
        evaluation={"probe_epochs": 2},
    )
    first = conduct(one, tmp_path / "one", console=console, store=partial(pages.store, "one"))
    assert pages.known_runs().keys() == {run["key"] for run in first["runs"]}
    two = replace(one, title="Two", base="alone", variants={"alone": {}, "warmer": {"options": {"temperature": 0.5}}})
    second = conduct(two, tmp_path / "two", console=console, known=pages.known_runs())
    assert [path.parts[-4:-1] for path in (tmp_path / "two").rglob("result.json")] == [("simclr", "warmer", "0")]
    assert second["runs"][0] == {**first["runs"][0], "variant": "alone", "path": "few/simclr/alone/0"}
    assert second["references"] == first["references"]
    assert not pages.runs_missing(second)
    (cell,) = one.cells()
    for changed in ({"evaluation": {"probe_epochs": 3}}, {"settings": {**settings, "epochs": 2}}):
        assert run_key(*replace(one, **changed).configs(cell)) not in pages.known_runs()
    in_process = replace(one, settings={**settings, "workers": 0})
    assert run_key(*in_process.configs(cell)) in pages.known_runs(), "the number of workers changes no result"
    # Another method needs a new run, but the references are known and not evaluated again.
    third = conduct(replace(one, methods=("simsiam",)), tmp_path / "three", console=console, known=pages.known_runs())
    assert third["runs"][0]["references"] == {}
    assert third["references"] == first["references"]
    (other,) = replace(one, methods=("simsiam",)).cells()
    assert reference_key(*replace(one, methods=("simsiam",)).configs(other)) == first["runs"][0]["reference"]
    for changed in (
        {"evaluation": {"probe_epochs": 3}},
        {"settings": {**settings, "max_images": 50}},
        {"data": ("fashion-mini",)},
    ):
        asked = replace(one, **changed)
        assert reference_key(*asked.configs(next(asked.cells()))) != first["runs"][0]["reference"]


def made(processor: str, *values: float, variant: str = "none") -> list[dict[str, Any]]:
    """Runs of one kind of machine, one per seed."""
    return [
        {"key": f"{variant}{seed}", "data": "d", "method": "simclr", "variant": variant, "seed": seed,
         "values": {"knn5": value}, "references": {}, "machine": {"processor": processor}}
        for seed, value in enumerate(values)
    ]  # fmt: skip


def test_differences_between_two_machines_are_summarised() -> None:
    adc = {"adc": {"constrain": "adc", "nu": 0.3}}
    one = {"variants": {"none": {}, **adc}, "runs": [*made("P", 0.4, 0.5), *made("P", 0.7, variant="adc")]}
    two = {"variants": {"plain": {"nu": 0.3}}, "runs": [{**run, "variant": "plain"} for run in made("Q", 0.42, 0.5)]}
    assert machines.section([one]) == ""
    assert machines.repeated([one, two])["methods"] == ["simclr"], "the shorter name; adc has run once only"
    text = machines.section([one, two])
    assert "k-NN (k = 5) +1.00 [-11.71, 13.71] over 2 pairs, standard deviation 1.41." in text
    assert "| simclr | 45.0 ± 7.1 (2) | 46.0, +1.00, n.s. [-11.71, 13.71] (2) |" in text


def test_a_study_keeps_its_own_runs_of_two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    for name, processor in (("one", "P"), ("two", "Q")):
        pages.store(name, {"evaluated": {}, "settings": {}, "variants": {}, "runs": made(processor, 0.5)})
    (first,) = pages.known_runs("one").values()
    (second,) = pages.known_runs("two").values()
    assert [run["machine"]["processor"] for run in (first, second)] == ["P", "Q"]
    assert list(pages.known_runs("one", {"processor": "Q"}).values()) == [second]
    assert pages.known_runs("one", {"processor": "R"}) == {}
    references = {"pixels": {"knn5": 0.3}}
    pages.store("one", {**dict(pages.stored())["one"], "runs": [{**first, "references": references}]})
    assert pages.known_runs("two") == {second["key"]: {**second, "references": references}}, "references are kept"


@pytest.mark.parametrize("method", ["byol", "moco"])
def test_two_hundred_kills_were_survived(method: str) -> None:
    """With an EMA teacher and with a queue (benchmarks/soak.py --store; tests/train/test_resume.py has a few kills)."""
    found = json.loads((BENCHMARKS / "results" / "soak.json").read_text())[method]
    assert sum(found["kills"].values()) == 200
    assert min(found["kills"].values()) >= 50, "both at random moments and while a checkpoint is written"
    assert found["differs"] == found["leftovers"] == []


@pytest.mark.parametrize(
    ("ratio", "limits", "holds"),
    [
        (2.0, {"at_least": 1.8}, True),
        (1.7, {"at_least": 1.8}, False),
        (0.5, {"at_most": 1.0}, True),
        (1.5, {"at_most": 1.0}, False),
        (1.5, {}, None),
        (None, {}, None),
    ],
)
def test_a_ratio_is_compared_with_its_limits(ratio: float | None, limits: dict[str, float], holds: bool | None) -> None:
    assert Row(part="", what="", value="", ratio=ratio, **limits).holds is holds


def test_speeds_are_compared_in_images_per_second() -> None:
    row = Row.of_speeds("part", "what", 1500.0, 500.0, to="peer", at_least=2, digits=0)
    assert (row.value, row.ratio, row.holds) == ("1,500 against 500 images/s", 3.0, True)


def test_timed_cases_alternate_after_a_warm_up() -> None:
    seen: list[str] = []
    found = interleaved({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, repetitions=2)
    assert seen == ["a", "b"] * 3
    assert set(found) == {"a", "b"}
