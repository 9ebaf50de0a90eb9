"""The pages of a trained run, of an adapted run and of a comparison, in Chromium."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from glf.adaptation.run import adapt
from glf.comparison.conduct import write
from glf.comparison.study import Study
from glf.config.evaluation import EvaluateConfig
from glf.config.training import AdaptConfig, PretrainConfig
from glf.data.sources import load_images
from glf.evaluation.suite import evaluate
from glf.reporting.page import write_report
from glf.train.run import pretrain
from reporting.browser import Browser, chromium

CLASSES = ("<img src=x onerror=alert(1)>", "a \"quoted\" & 'odd' class", "trousers")
RUN = "evaluation about doctor training geometry theorem map neighbours views outliers".split()
ADAPTED = "choice evaluation about doctor training geometry map changed neighbours views outliers".split()
COMPARISON = "deltas table sensitivity maps runs about".split()

# Contrast of every text with its background, by WCAG's formula; text in SVG has the colour of its fill.
CONTRAST = """
const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= .04045 ? c / 12.92
  : ((c + .055) / 1.055) ** 2.4).reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const c = channels(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), bad = [];
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement, style = getComputedStyle(e);
  if (!walker.currentNode.textContent.trim() || ['SCRIPT', 'STYLE'].includes(e.tagName)) continue;
  const [a, b] = [light(channels(e.closest('svg') ? style.fill : style.color)), light(behind(e))];
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) bad.push([walker.currentNode.textContent.trim().slice(0, 40), ratio]);
}
return bad;
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files with quotes in their names, in folders named like HTML."""
    root = tmp_path_factory.mktemp("data") / 'it\'s "mine"'
    for split, count in (("train", 48), ("test", 16)):
        images = load_images("fashion-mini", split)
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for row in np.flatnonzero(images.targets == label)[:count]:
                Image.fromarray(images.pixels[row, ..., 0]).save(folder / f"'{row}\".png")
    return str(root)


@pytest.fixture(scope="module")
def made(photos: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained and evaluated run, an adaptation of it, a comparison over nu, and their pages."""
    out, console = tmp_path_factory.mktemp("made"), Console(quiet=True)
    quick = {"batch_size": 32, "epochs": 2, "log_every": 1, "image_size": 28, "val_images": 24}
    pretrain(PretrainConfig(data=photos, out=out / "run", **quick), console)  # type: ignore[arg-type]
    asked = EvaluateConfig(run=out / "run", suite=("knn", "linear", "geometry", "theory"), probe_epochs=5)
    evaluate(asked, console)
    start = AdaptConfig(encoder=f"run:{out / 'run'}", data=photos, out=out / "adapted", views=2, lr=1e-2, choose=False)
    adapt(replace(start, **{**quick, "image_size": None}), console)
    evaluate(replace(asked, run=out / "adapted", suite=("knn", "geometry")), console)
    variants = {"none": {}, **{name: {"constrain": "adc", "nu": float(name)} for name in ("0.1", "1", "10")}}
    study = Study(
        title="The weight of <DCM>", methods=("simclr",), data=(photos,), seeds=2, base="none", variants=variants,
        settings={**quick, "epochs": 1, "val_images": 0}, evaluation={"suite": ["knn", "linear"], "probe_epochs": 5},
    )  # fmt: skip
    for cell in study.cells():
        run = out / "study" / cell.path
        pretrain(replace(study.config(cell), out=run), console)
        evaluate(study.evaluate_config(run, references=cell.variant == "none", artifacts=cell.seed == 0), console)
    with pytest.MonkeyPatch.context() as patch:  # the page shows the command, which may be a long word
        patch.setattr(sys, "argv", ["glf", "compare", "--out", "x" * 200])
        write(study, out / "study", {})  # as glf compare does after every run, including its page
    write_report(out / "run", out / "run.html")
    write_report(out / "adapted", out / "adapted.html")
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(browser: Browser, made: Path) -> dict[str, Path]:
    """The pages; the browser fixture comes first, so nothing is trained where it is missing."""
    return {"run": made / "run.html", "adapted": made / "adapted.html", "comparison": made / "study" / "report.html"}


@pytest.mark.parametrize(("name", "sections"), [("run", RUN), ("adapted", ADAPTED), ("comparison", COMPARISON)])
def test_pages_render_without_errors_and_without_network(
    name: str, sections: list[str], browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages[name])
    assert browser.said() == []
    assert browser.asked_for() == {pages[name].resolve().as_uri()}
    found = browser.script("return [...document.querySelectorAll('section')].map((s) => [s.id, s.offsetHeight])")
    assert [key for key, height in found if height > 60] == sections
    levels = browser.script("return [...document.querySelectorAll('h1,h2,h3')].map((h) => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    unnamed = "return [...document.querySelectorAll('[role=img]')].filter((e) => !e.ariaLabel?.trim()).length"
    assert browser.script(unnamed) == 0


@pytest.mark.parametrize("name", ["run", "adapted", "comparison"])
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (400, False), (400, True)])
def test_pages_are_readable_in_light_and_dark_mode_and_on_a_phone(
    name: str, width: int, dark: bool, browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    browser.open(pages[name], width=width, dark=dark)
    assert browser.script("return document.documentElement.scrollWidth") <= width
    assert browser.script(CONTRAST) == []
    picture = Image.open(browser.screenshot(tmp_path / "page.png")).convert("L")
    assert picture.width == width
    paper = max(picture.getcolors(256), key=lambda found: found[0])[1]
    assert paper < 50 if dark else paper > 200


def test_names_from_the_data_are_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"])
    assert browser.script("return document.querySelectorAll('img, main script').length") == 0
    legend = browser.script("return [...document.querySelectorAll('.legend li')].map((e) => e.textContent)")
    assert sorted(legend) == sorted(CLASSES)
    assert 'it\'s "mine"' in browser.script("return document.querySelector('h1').textContent")


def test_a_dot_shows_its_image_under_the_pointer_and_by_keys(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"])
    lens = browser.driver.find_element(By.CSS_SELECTOR, ".lens")
    assert not lens.is_displayed()
    drawing = browser.driver.find_element(By.CSS_SELECTOR, ".dots")
    place = """
        const box = arguments[0].getBoundingClientRect(), path = arguments[0].querySelector('.dot');
        const [x, y] = path.getAttribute('d').slice(1).split('h')[0].split(' ').map(Number);
        const scale = box.width / arguments[0].viewBox.baseVal.width;
        return [path.dataset.name, x * scale - box.width / 2, y * scale - box.height / 2];
    """
    browser.script("arguments[0].scrollIntoView({block: 'center'})", drawing)
    name, x, y = browser.script(place, drawing)
    ActionChains(browser.driver).move_to_element_with_offset(drawing, round(x), round(y)).perform()
    assert lens.is_displayed()
    assert lens.text.startswith(f"{name}, index ")
    tile = browser.script("return getComputedStyle(document.querySelector('.lens .tile')).backgroundImage")
    assert tile.startswith('url("data:image/webp;base64,')
    ActionChains(browser.driver).move_to_element(browser.driver.find_element(By.TAG_NAME, "h2")).perform()
    assert not lens.is_displayed()
    browser.script("arguments[0].focus()", drawing)
    drawing.send_keys(Keys.ARROW_RIGHT)
    first = lens.text
    drawing.send_keys(Keys.ARROW_LEFT)
    assert ", index " in first
    assert lens.text != first
    assert browser.script("return document.querySelector('[aria-live]').textContent") == lens.text
    drawing.send_keys(Keys.ESCAPE)
    assert not lens.is_displayed()


def test_a_click_on_the_legend_highlights_a_class(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"])
    button = browser.driver.find_elements(By.CSS_SELECTOR, ".legend button")[1]
    browser.script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    lit = "return [...document.querySelectorAll('.dot')].map((e) => getComputedStyle(e).strokeOpacity)"
    assert browser.script(lit) == ["0.1", "1", "0.1"]
    button.click()
    assert len(set(browser.script(lit))) == 1


@pytest.mark.parametrize("width", [1200, 400])
def test_both_maps_of_an_adapted_run_show_the_same_image(width: int, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["adapted"], width=width)
    before, after = browser.driver.find_elements(By.CSS_SELECTOR, "#map .dots")
    corner = "const box = arguments[0].getBoundingClientRect(); return [box.x, box.y]"
    boxes = [browser.script(corner, drawing) for drawing in (before, after)]
    assert (boxes[0][0] < boxes[1][0], boxes[0][1] < boxes[1][1]) == ((True, False) if width > 1000 else (False, True))
    browser.script("arguments[0].focus()", before)
    before.send_keys(Keys.ARROW_RIGHT)
    rung = """
        return [...document.querySelectorAll('#map .dots')].map((drawing) => {
          const ring = drawing.querySelector('.ring'), at = ring && [ring.getAttribute('cx'), ring.getAttribute('cy')];
          for (const path of drawing.querySelectorAll('.dot')) {
            const place = path.getAttribute('d').slice(1).split('M').findIndex((d) => {
              const [x, y] = d.slice(0, -2).split(' ').map(Number);
              return at && x === +at[0] && y === +at[1];
            });
            if (place >= 0) return path.dataset.tiles.split(' ')[place];
          }
        });
    """
    one, other = browser.script(rung)
    assert one == other
    assert one is not None
    shown = browser.script("return [...document.querySelectorAll('#map .lens')].map((e) => !e.hidden)")
    assert shown == [True, False]
    before.send_keys(Keys.ESCAPE)
    assert browser.script("return document.querySelectorAll('#map .ring').length") == 0
    button = browser.driver.find_elements(By.CSS_SELECTOR, "#map .legend button")[1]
    browser.script("arguments[0].click()", button)
    lit = "return [...document.querySelectorAll('#map .dot')].map((e) => getComputedStyle(e).strokeOpacity)"
    assert browser.script(lit) == ["0.1", "1", "0.1"] * 2


def test_the_choice_of_an_adaptation_is_on_the_first_screen(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["adapted"])
    place = "return document.querySelector('#choice tbody').getBoundingClientRect().bottom"
    assert browser.script(place) < 900


def test_a_click_on_a_column_header_sorts_a_table(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"])
    table = browser.driver.find_element(By.CSS_SELECTOR, "#evaluation table.sortable")
    head = table.find_elements(By.CSS_SELECTOR, "thead th")[1]
    browser.script("arguments[0].scrollIntoView({block: 'center'})", head)

    def values() -> list[float]:
        cells = table.find_elements(By.CSS_SELECTOR, "tbody tr td:nth-child(2)")
        return [float(cell.get_attribute("data-value")) for cell in cells]

    head.find_element(By.TAG_NAME, "button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert values() == sorted(values(), reverse=True)
    assert len(values()) == 3
    head.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "ascending"
    assert values() == sorted(values())


def test_feature_maps_of_a_comparison_share_their_thumbnails(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    assert browser.script("return document.querySelectorAll('#maps .map').length") == 4  # none, and three values of nu
    assert pages["comparison"].read_text().count("data:image/webp") == 1
    axis = browser.script("return [...document.querySelector('#sensitivity svg').querySelectorAll('text')]"
                          ".map((e) => e.textContent)")  # fmt: skip
    assert {"0.1", "1", "10", "nu"} <= set(axis)


def test_the_page_prints(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["run"])
    assert browser.printed().startswith(b"%PDF")


@pytest.mark.slow
def test_fifty_runs_load_in_under_a_second(browser: Browser, made: Path, tmp_path: Path) -> None:
    """Best of five, because the machine may be busy."""
    for number in range(50):
        shutil.copytree(made / "run", tmp_path / "runs" / f"{number:02}", ignore=shutil.ignore_patterns("*.ckpt"))
    write_report(tmp_path / "runs", tmp_path / "page.html")
    took = []
    for _ in range(5):
        browser.open(tmp_path / "page.html")
        entry: Any = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        took.append(browser.script(entry))
    assert min(took) < 1000, took
