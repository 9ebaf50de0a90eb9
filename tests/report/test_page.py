"""The page says what result.json and metrics.jsonl say, in valid, inert HTML."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from glf import result
from glf.report.curves import plot
from glf.report.page import write_report

VOID = {"meta", "rect", "polyline", "path"}


class Outline(HTMLParser):
    """Checks that tags nest, and collects text and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        assert not any(
            name.startswith("on") or (value or "").startswith(("http:", "https:", "//")) for name, value in attrs
        )

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def a_run(path: Path, name: str = "photos") -> Path:
    path.mkdir(parents=True)
    rows = {"pixels": {"knn5": 0.5, "rank": 3.0}, "trained": {"knn5": 0.625, "rank": 12.5}}
    evaluation = {"data": name, "split": "test", "test": 2000, "train": 9000, "rows": rows, "percent": ["knn5"],
                  "protocols": {"knn5": "5-nn", "rank": "effective rank"}}  # fmt: skip
    result.update(path, method="simclr+adc", data={"name": name, "train": 9000}, evaluation=evaluation,
                  training={"val/rank": 12.5, "val/spread": 0.7}, **result.provenance())  # fmt: skip
    (path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 5.0, "align/cosine": 2.0, "constrain/dcm": 3.0, "share/constrain/dcm": 0.25}\n'
        '{"step": 2, "loss": 4.0, "align/cosine": 1.0, "constrain/dcm": NaN, "val/knn": 0.5}\n'
        '{"step": 3, "lo'
    )
    return path


def parsed(page: Path) -> Outline:
    outline = Outline()
    outline.feed(page.read_text())
    assert outline.open == []
    return outline


def test_one_run(tmp_path: Path) -> None:
    assert write_report(a_run(tmp_path / "a"), tmp_path / "out" / "page.html") == 1
    page = parsed(tmp_path / "out" / "page.html")
    for words in ("simclr+adc on photos", "62.5 %", "50.0 %", "12.50", "constrain/dcm", "val/knn"):
        assert words in page.text, words
    assert page.tags.count("svg") == 3  # the loss, the shares, the probe
    assert "script" not in page.tags


def test_many_runs(tmp_path: Path) -> None:
    for name in "abc":
        a_run(tmp_path / "runs" / name)
    assert write_report(tmp_path / "runs", tmp_path / "page.html") == 3
    assert parsed(tmp_path / "page.html").tags.count("section") == 3


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    write_report(a_run(tmp_path / "<b>run", name="<script>alert(1)</script>"), tmp_path / "page.html")
    page = parsed(tmp_path / "page.html")
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert "<b>run" in page.text


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run below"):
        write_report(tmp_path, tmp_path / "page.html")


def test_a_curve_runs_from_corner_to_corner() -> None:
    svg = plot("t", {"a": [(0.0, 0.0), (1.0, 1.0)]})
    assert 'points="52.0,216.0 432.0,8.0"' in svg
    assert plot("t", {"a": [(0.0, float("nan"))]}) == "<p>t: no finite values</p>"
