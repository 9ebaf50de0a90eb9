"""The share of the same class among neighbours, logged before training and after epochs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glf.config.adc import AdcOptions
from glf.reporting.load import find_runs
from glf.reporting.run_charts import training_charts

Run = Callable[..., Path]


def masses(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "val/mass/chance" in line]


@pytest.mark.parametrize(
    ("method", "adc", "names"),
    [
        ("simclr+adc", AdcOptions(), {"cal", "dat", "pre", "chance"}),
        ("simclr+adc", AdcOptions(target="memory", memory_size=128), {"cal", "dat", "pre", "chance"}),
        ("byol+dcm", AdcOptions(target="clean"), {"cal", "dat", "chance"}),
        ("simclr+lpm", AdcOptions(lpm_at="bank"), {"dat", "pre", "chance"}),
    ],
)
def test_masses_are_logged(method: str, adc: AdcOptions, names: set[str], small_run: Run) -> None:
    run = small_run(method=method, adc=adc, epochs=2)
    found = masses(run)
    assert [line["step"] for line in found] == [0, 2, 4]
    for line in found:
        assert {name[9:] for name in line if name.startswith("val/mass/")} == names
        assert all(0 <= value <= 1 for name, value in line.items() if name.startswith("val/mass/"))
    assert "share of the same class among neighbours before training: " in (run / "train.log").read_text()
    charts = {chart.key: chart for chart in training_charts(find_runs(run)[0][0])}
    assert len(charts["class-mass"].series) == len(names)


def test_the_prior_knows_more_than_chance(small_run: Run) -> None:
    first = masses(small_run(method="simclr+lpm", max_images=600, val_images=200))[0]
    assert first["val/mass/pre"] > first["val/mass/chance"] + 0.1


def test_measuring_changes_no_step(small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for name in ("with", "without"):
        adc = AdcOptions(target="memory", memory_size=100)
        run = small_run(method="simclr+adc", adc=adc, epochs=2, out=tmp_path / name)
        assert bool(masses(run)) == (name == "with")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if "loss" in line])
        monkeypatch.setattr("glf.train.class_mass.ClassMass.measure", lambda self, module: {})
    assert losses[0] == losses[1]


@pytest.mark.parametrize("settings", [{"method": "simclr"}, {"method": "simclr+lpm", "val_images": 0}])
def test_nothing_to_measure(settings: dict[str, Any], small_run: Run) -> None:
    assert not masses(small_run(**settings))
