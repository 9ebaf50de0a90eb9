"""The page: its content, valid HTML, escaping, and errors."""

import os
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from glf.reporting.page import write_report
from glf.reporting.study_tables import EXPLANATION
from reporting.samples import HARMFUL, QUOTED, a_comparison, a_run, an_adapted_run

GOLDEN = Path(__file__).parent / "golden"
VOID = {"meta", "br", "img"}


class Outline(HTMLParser):
    """Checks that tags nest; collects tags, ids, links and text."""

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
    outline.text = " ".join(outline.text.split())  # as a browser collapses white space
    assert outline.open == []
    assert len(set(outline.ids)) == len(outline.ids)
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids)
    return outline


def test_one_run(tmp_path: Path) -> None:
    assert write_report(a_run(tmp_path / "a"), tmp_path / "out" / "page.html") == 1
    page = parsed(tmp_path / "out" / "page.html")
    for words in (
        "simclr+adc on photos", "Healthy. k-NN (k = 5) reaches 62.5 % [60.0, 65.0]: 12.5 points",
        "12.5 points above raw pixels (50.0 %)", "22.5 points above the untrained network (40.0 %)",
        "62.5 ± 2.5", "0.3 dcm (KL(Gaussian row || t row))", "glf pretrain --data 'my photos'",
        "constrain/dcm, weighted", "above log K = 0.69", "1.00 · index 3",
    ):  # fmt: skip
        assert words in page.text, words
    sections = "evaluation about doctor training geometry theorem map neighbours views outliers".split()
    assert [name for name in page.ids if name in sections] == sections
    assert page.tags.count("script") == 1


@pytest.mark.parametrize(
    ("kind", "sample"), [("run", a_run), ("adapted", an_adapted_run), ("comparison", a_comparison)]
)
def test_the_page_is_the_golden_page(
    kind: str, sample: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GLF_GOLDEN=1 writes the golden pages: look at the difference before you commit it."""
    monkeypatch.chdir(tmp_path)
    sample(Path("sample"))
    write_report(Path("sample"), Path("page.html"))
    body = Path("page.html").read_text().partition("<main")[2].partition("</main>")[0].replace("><", ">\n<")
    if os.environ.get("GLF_GOLDEN"):
        (GOLDEN / f"{kind}.html").write_text(body)
    assert body == (GOLDEN / f"{kind}.html").read_text()


def test_the_problems_of_an_unhealthy_run_come_first(tmp_path: Path) -> None:
    finding = {
        "name": "constant collapse",
        "since": 12,
        "why": "w",
        "evidence": "spread 0.001",
        "advice": "a lower --lr",
    }
    write_report(a_run(tmp_path / "a", doctor=[finding]), tmp_path / "page.html")
    text = parsed(tmp_path / "page.html").text
    assert "Unhealthy. The doctor found constant collapse since step 12." in text
    assert "a lower --lr" in text


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    """Artifacts without an evaluation show older weights, before training was resumed."""
    write_report(a_run(tmp_path / "a", evaluation=None), tmp_path / "page.html")
    page = parsed(tmp_path / "page.html")
    assert "Not evaluated yet" in page.text
    assert "map" not in page.ids
    assert "training" in page.ids


def test_many_runs(tmp_path: Path) -> None:
    for name in "abc":
        a_run(tmp_path / "runs" / name)
    a_comparison(tmp_path / "runs" / "study")
    assert write_report(tmp_path / "runs", tmp_path / "page.html") == 3 + 12
    page = parsed(tmp_path / "page.html")
    assert "3 runs and 1 comparison · glf report" in page.text
    assert sum(name.startswith("run-") for name in page.ids) == 3  # without those of the comparison
    text = (tmp_path / "page.html").read_text()
    assert text.count("data:image/webp") == 4  # identical sheets are embedded once


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


def test_names_that_are_not_valid_text_are_escaped(tmp_path: Path) -> None:
    write_report(a_run(tmp_path / "a", classes=("\udcff", "b"), name="\udcfe"), tmp_path / "page.html")
    assert "\\udcfe" in parsed(tmp_path / "page.html").text


def test_errors_name_the_file_and_the_next_step(tmp_path: Path) -> None:
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
        "The weight of <DCM>", "Of 6 differences from none, 2 gains and 2 losses are significant; 2 are not (n.s.).",
        "simclr + 10, linear probe on d, -9.33", "no & no", "+2.00 [1.50, 2.50]", "simclr, d, seed 0",
        "+0.40, n.s. [-0.98, 1.78]", EXPLANATION,
    ):  # fmt: skip
        assert words in page.text, words
    sections = "deltas table sensitivity maps runs failed about".split()
    assert [name for name in page.ids if name in sections] == sections


def test_a_variant_is_compared_with_another_one_too(tmp_path: Path) -> None:
    write_report(a_comparison(tmp_path / "c", versus={"0.1": "10"}), tmp_path / "page.html")
    text = parsed(tmp_path / "page.html").text
    assert "0.1 over 10" in text
    assert "+11.33" in text  # 2.00 above the base, which is 9.33 above the other
    write_report(a_comparison(tmp_path / "d"), tmp_path / "page.html")
    assert "over 10" not in parsed(tmp_path / "page.html").text
