"""Figures and numbers as files, and the error without matplotlib."""

import json
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from glf.reporting.page import write_report
from reporting.samples import a_comparison, a_run


def test_figures_and_numbers(tmp_path: Path) -> None:
    write_report(a_run(tmp_path / "a"), tmp_path / "page.html", tmp_path / "run")
    write_report(a_comparison(tmp_path / "c"), tmp_path / "page.html", tmp_path / "comparison")
    assert {"loss.svg", "loss.png", "loss.csv", "map.svg", "evaluation.csv", "spectrum.png"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert (tmp_path / "run" / "loss.csv").read_text().splitlines()[:3] == [
        "series,x,y,low,high", "loss,1.0,5.0,,", "loss,2.0,4.0,,",
    ]  # fmt: skip
    differences = json.loads((tmp_path / "comparison" / "differences.json").read_text())
    assert differences[0]["difference"] == pytest.approx(2.0)
    assert differences[0]["significant"] is True
    assert len((tmp_path / "comparison" / "runs.csv").read_text().splitlines()) == 1 + 12 * 2
    assert "| simclr | 51.0 ± 1.0 (3) |" in (tmp_path / "comparison" / "table.md").read_text()
    for path in tmp_path.rglob("*.png"):
        assert Image.open(path).convert("L").getextrema() == (0, 255) or Image.open(path).getcolors(9) is None
    for path in tmp_path.rglob("*.svg"):
        assert re.match(r'<svg xmlns="http://www.w3.org/2000/svg" ', path.read_text())


def test_without_matplotlib_only_figures_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"--figures needs matplotlib .* pip install 'glf\[figures\]'"):
        write_report(run, tmp_path / "page.html", tmp_path / "figures")
    assert not (tmp_path / "page.html").exists()
    assert not (tmp_path / "figures").exists()
    write_report(run, tmp_path / "page.html")
    assert (tmp_path / "page.html").exists()
