"""The page of an adapted run: what was kept and why, the candidates, both maps, the neighbours that changed."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from glf.reporting.page import write_report
from reporting.samples import an_adapted_run
from reporting.test_page import Outline, parsed


def page_of(path: Path, *arguments: Any, **changed: Any) -> Outline:
    an_adapted_run(path / "a", *arguments, **changed)
    write_report(path / "a", path / "page.html", path / "figures")
    return parsed(path / "page.html")


def test_before_and_after(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    for words in (
        "resnet18 adapted to photos",
        "Adapted: the average 0.75 is kept; k-NN on 1,000 held-out images 86.3 %, 4.1 points above the frozen encoder"
        " (82.2 %), 83 % of neighbours kept. Evaluated on 2,000 images (split: test): k-NN (k = 5) reaches 62.5 %",
        "22.5 points above the frozen encoder (40.0 %)", "pixels 50.0 % · frozen 40.0 %",
        "weightsheld-out k-NNview recallneighbours kepteffective rankuniformity", "frozen82.2 %90.0 %100.0 %20.0-1.50",
        "average 0.75 (chosen)86.3 %93.0 %83.0 %23.0-1.80",
        "no others beat significantly, first in k-NN accuracy on 1,000 held-out images with labels",
        "share of the frozen encoder's neighbours kept", "timm:resnet18, last stages trained",
        "before: the frozen encoder", "after: average 0.75", "on average 88 % of the 2 most similar training images",
        "cat (index 1): 1 of 2 neighbours kept",
    ):  # fmt: skip
        assert words in page.text, words
    sections = "choice evaluation about doctor training geometry theorem map changed neighbours views outliers".split()
    assert [name for name in page.ids if name in sections] == sections
    assert "untrained" not in (tmp_path / "page.html").read_text()
    text = (tmp_path / "page.html").read_text()
    assert text.count("data:image/webp") == 5  # both maps share their thumbnails
    assert text.count('class="marked"') == 1  # the chosen weights


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chosen": "frozen"}, "Nothing beats the frozen encoder: its weights are kept; k-NN on 1,000 held-out images"
         " 82.2 %. Not evaluated on the test split yet: run glf evaluate."),
        ({"chosen": "frozen", "labelled": False, "by": "kept"},
         "Nothing beats the frozen encoder: its weights are kept, chosen without labels by the view recall."),
        ({"labelled": False, "by": "kept"},
         "Adapted: the average 0.75 is kept, chosen without labels by the view recall, 83 % of neighbours kept."),
        ({"chosen": "adapted"}, "Adapted: the adapted weights are kept; k-NN on 1,000 held-out images 85.0 %, 2.8"
         " points above the frozen encoder (82.2 %), 70 % of neighbours kept."),
        ({"chosen": "adapted", "by": "--no-choose", "labelled": False},
         "Adapted: the adapted weights are kept, as --no-choose asks, 70 % of neighbours kept."),
    ],
)  # fmt: skip
def test_the_sentence_says_what_was_kept_and_why(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    page = page_of(tmp_path, evaluation=None, **settings)
    assert words in page.text
    assert "choice" in page.ids
    assert "map" not in page.ids
    assert ("held-out k-NN" in page.text) == settings.get("labelled", True)


def test_an_unhealthy_adaptation_names_the_problem_first(tmp_path: Path) -> None:
    finding = {"name": "constant collapse", "since": 12, "why": "w", "evidence": "e", "advice": "a"}
    text = page_of(tmp_path, doctor=[finding]).text
    assert "Unhealthy. The doctor found constant collapse since step 12. Adapted: the average 0.75 is kept;" in text


def test_without_the_frozen_encoder_there_is_one_map(tmp_path: Path) -> None:
    """glf evaluate --no-references, or frozen weights that were kept."""
    run = an_adapted_run(tmp_path / "a")
    data = run / "artifacts" / "report.json"
    found = json.loads(data.read_text())
    data.write_text(json.dumps({key: value for key, value in found.items() if key not in ("map_frozen", "changed")}))
    write_report(run, tmp_path / "page.html")
    page = parsed(tmp_path / "page.html")
    assert "map" in page.ids
    assert "changed" not in page.ids
    assert "before: the frozen encoder" not in page.text


def test_both_maps_and_the_kept_neighbours_are_figures(tmp_path: Path) -> None:
    page_of(tmp_path)
    places = []
    for name in ("map", "map_frozen"):
        assert (tmp_path / "figures" / f"{name}.png").is_file()
        places.append(list(csv.DictReader((tmp_path / "figures" / f"{name}.csv").read_text().splitlines())))
    assert [one["series"] for one in places[0]] == [one["series"] for one in places[1]]
    assert places[0] != places[1]
    assert "kept,2.0,0.7,," in (tmp_path / "figures" / "kept.csv").read_text()
