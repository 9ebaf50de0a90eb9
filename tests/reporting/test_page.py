"""The page says what result.json, metrics.jsonl and artifacts/ say, in valid, inert HTML."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from glf.reporting.page import write_report
from reporting.samples import HARMFUL, QUOTED, a_comparison, a_run

GOLDEN = Path(__file__).parent / "golden"
VOID = {"meta", "br", "img"}


class Outline(HTMLParser):
    """Checks that tags nest, and collects what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert not (value or "").startswith(("http:", "https:", "//", "javascript:"))
            self.ids += [str(value)] if name == "id" else []
            self.links += [str(value)] if name == "href" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data


def parsed(page: Path) -> Outline:
    outline = Outline()
    outline.feed(page.read_text())
    assert outline.open == []
    assert len(set(outline.ids)) == len(outline.ids)
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids)
    return outline


def test_one_run(tmp_path: Path) -> None:
    assert write_report(a_run(tmp_path / "a"), tmp_path / "out" / "page.html") == 1
    page = parsed(tmp_path / "out" / "page.html")
    for words in (
        "simclr+adc on photos", "Healthy.", "5-nn reaches 62.5 % [60.0, 65.0]",
        "12.5 points above raw pixels (50.0 %)", "22.5 points above the untrained network (40.0 %)",
        "62.5 ± 2.5", "0.3 dcm (KL(Gaussian row || t row))", "glf pretrain --data 'my photos'",
        "constrain/dcm, weighted",        "above log K = 0.69", "1.00 · row 3",
    ):  # fmt: skip
        assert words in page.text, words
    sections = "about doctor evaluation training geometry theorem map neighbours views outliers".split()
    assert [name for name in page.ids if name in sections] == sections
    assert page.tags.count("script") == 1


@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_it_is_the_page_that_was_looked_at(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GLF_GOLDEN=1 writes the pages anew: look at the difference before you commit it."""
    monkeypatch.chdir(tmp_path)
    (a_run if kind == "run" else a_comparison)(Path("sample"))
    write_report(Path("sample"), Path("page.html"))
    body = Path("page.html").read_text().partition("<main")[2].partition("</main>")[0].replace("><", ">\n<")
    if os.environ.get("GLF_GOLDEN"):
        (GOLDEN / f"{kind}.html").write_text(body)
    assert body == (GOLDEN / f"{kind}.html").read_text()


def test_sick_runs_say_so_first(tmp_path: Path) -> None:
    finding = {
        "name": "constant collapse",
        "since": 12,
        "why": "w",
        "evidence": "spread 0.001",
        "advice": "a lower --lr",
    }
    write_report(a_run(tmp_path / "a", doctor=[finding]), tmp_path / "page.html")
    text = parsed(tmp_path / "page.html").text
    assert "Sick. The doctor finds constant collapse since step 12." in text
    assert "a lower --lr" in text


def test_a_run_that_was_not_judged(tmp_path: Path) -> None:
    """Artifacts without an evaluation are of weights that were trained on since."""
    write_report(a_run(tmp_path / "a", evaluation=None), tmp_path / "page.html")
    page = parsed(tmp_path / "page.html")
    assert "Not judged yet" in page.text
    assert "map" not in page.ids
    assert "training" in page.ids


def test_many_runs(tmp_path: Path) -> None:
    for name in "abc":
        a_run(tmp_path / "runs" / name)
    a_comparison(tmp_path / "runs" / "study")
    assert write_report(tmp_path / "runs", tmp_path / "page.html") == 3 + 12
    page = parsed(tmp_path / "page.html")
    assert "3 runs and 1 comparison" in page.text
    assert sum(name.startswith("run-") for name in page.ids) == 3  # those of the comparison are its own
    text = (tmp_path / "page.html").read_text()
    assert text.count("data:image/webp") == 4  # a sheet that runs share is there once


def test_with_many_runs_galleries_are_left_out(tmp_path: Path) -> None:
    for number in range(13):
        a_run(tmp_path / "runs" / f"{number:02}")
    write_report(tmp_path / "runs", tmp_path / "page.html")
    page = parsed(tmp_path / "page.html")
    assert "Galleries are left out with more than 12 runs" in page.text
    assert not any(name.startswith("outliers") for name in page.ids)
    assert "map-12" in page.ids


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    run = a_run(tmp_path / "<b>run", name=HARMFUL, classes=(HARMFUL, QUOTED), method=f"a{HARMFUL}", command=HARMFUL)
    write_report(run, tmp_path / "page.html", tmp_path / "figures")
    page = parsed(tmp_path / "page.html")
    assert page.tags.count("script") == 1
    for words in (HARMFUL, QUOTED, "<b>run"):
        assert words in page.text
    assert HARMFUL not in (tmp_path / "page.html").read_text()
    assert all(HARMFUL not in path.read_text() for path in (tmp_path / "figures").glob("*.svg"))
    write_report(a_comparison(tmp_path / "c", title=HARMFUL, finding=QUOTED), tmp_path / "other.html")
    assert parsed(tmp_path / "other.html").tags.count("script") == 1


def test_what_cannot_be_shown_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no run below .* glf pretrain makes one"):
        write_report(tmp_path, tmp_path / "page.html")
    run = a_run(tmp_path / "a")
    (run / "artifacts" / "report.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="schema 99, but this version of glf reads schema 2: create it again"):
        write_report(run, tmp_path / "page.html")
    (tmp_path / "compare.json").write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        write_report(tmp_path, tmp_path / "page.html")


def test_a_comparison(tmp_path: Path) -> None:
    assert write_report(a_comparison(tmp_path / "c"), tmp_path / "page.html") == 12
    page = parsed(tmp_path / "page.html")
    for words in (
        "The weight of <DCM>", "Of 6 differences to none, 2 gains and 2 losses are shown; 2 are not",
        "simclr + 10, linear probe on d, -9.33", "no & no", "+2.00 [1.50, 2.50]", "simclr, d, seed 0",
    ):  # fmt: skip
        assert words in page.text, words
    sections = "deltas table sensitivity maps runs failed about".split()
    assert [name for name in page.ids if name in sections] == sections


def test_a_variant_is_held_against_another_one_too(tmp_path: Path) -> None:
    write_report(a_comparison(tmp_path / "c", versus={"0.1": "10"}), tmp_path / "page.html")
    text = parsed(tmp_path / "page.html").text
    assert "0.1 over 10" in text
    assert "+11.33" in text  # 2.00 above the base, which is 9.33 above the other
    write_report(a_comparison(tmp_path / "d"), tmp_path / "page.html")
    assert "over 10" not in parsed(tmp_path / "page.html").text


def test_figures_and_numbers(tmp_path: Path) -> None:
    from PIL import Image

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
    assert differences[0]["shown"] is True
    assert len((tmp_path / "comparison" / "runs.csv").read_text().splitlines()) == 1 + 12 * 2
    assert "| simclr | 51.0 ± 1.0 (3) |" in (tmp_path / "comparison" / "table.md").read_text()
    for path in tmp_path.rglob("*.png"):
        assert Image.open(path).convert("L").getextrema() == (0, 255) or Image.open(path).getcolors(9) is None
    for path in tmp_path.rglob("*.svg"):
        assert re.match(r'<svg xmlns="http://www.w3.org/2000/svg" ', path.read_text())
