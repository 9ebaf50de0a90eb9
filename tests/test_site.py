"""The site builds without warnings and without the network; generated tables and pictures are up to date."""

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import glf
from glf.commands import COMMANDS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from docs_docstrings import as_markdown  # noqa: E402
from docs_site import LINK, options, relinked  # noqa: E402
from draw_pictures import PAINTERS, draw  # noqa: E402
from make_architecture import OUT as ARCHITECTURE  # noqa: E402
from make_architecture import draw as draw_architecture  # noqa: E402
from make_architecture import graph  # noqa: E402
from make_methods_table import PAGES, with_methods  # noqa: E402
from make_pictures import OUT, PICTURES, rounded  # noqa: E402

STORED = json.loads((OUT / "pictures.json").read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_of_docs_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / page.with_suffix(".html").name).is_file(), page.name


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    shown = (
        r'<(?:script|img|iframe|source)[^>]*\ssrc="?(https?:)?//|<link[^>]*\shref="?(https?:)?//'
        r'|@import|url\(["\']?https?:'
    )
    for file in [*site.rglob("*.html"), *site.glob("*.css")]:
        assert not re.search(shown, file.read_text()), file.name


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "api.html").read_text()
    missing = [name for name in glf.__all__ if f'id="glf.{name}"' not in page]
    assert not missing, f"give each a line '::: NAME' in docs/api.md: {missing}"


def test_every_option_of_a_command_is_in_the_reference(site: Path) -> None:
    page = (site / "api.html").read_text()
    for command in COMMANDS.values():
        assert command.name == "methods" or all(
            f"<code>{html.escape(one, quote=False)}</code>" in page for one in options(command.config)
        )


def test_formulas_and_examples_are_rendered(site: Path) -> None:
    for name in ("api.html", "adc.html"):
        page = (site / name).read_text()
        assert page.count("<math") >= 4
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", page, flags=re.DOTALL)
        for left in ("arithmatex", ".. math::", ":math:", "$$", "&gt;&gt;&gt;"):
            assert left not in prose, f"{name} shows {left}"


def test_a_formula_of_several_lines_becomes_one() -> None:
    shown = as_markdown("One.\n\n.. math::\n    a +\n    b\n\nTwo :math:`c`.\n\n>>> 1\n1")
    assert shown == "One.\n\n$$\na + b\n$$\n\nTwo $c$.\n\n```pycon\n>>> 1\n1\n```"


@pytest.mark.parametrize(
    ("here", "markdown", "shown"),
    [
        ("docs/a.md", "[x](scale.md#one)", "[x](scale.md#one)"),
        ("docs/a.md", "[x](../benchmarks/RESULTS.md)", "[x](benchmarks/RESULTS.md)"),
        ("docs/a.md", "[studies](../benchmarks/studies)", "`studies`"),
        ("benchmarks/SPEED.md", "![x](results/speed.svg)", "![x](results/speed.svg)"),
        ("benchmarks/RESULTS.md", "[x](../docs/scale.md)", "[x](../scale.md)"),
        ("docs/a.md", "[x](https://keepachangelog.com)", "[x](https://keepachangelog.com)"),
        ("docs/a.md", "`[x](no.md)`", "`[x](no.md)`"),
    ],
)
def test_relative_links_of_the_repository_become_links_of_the_site(here: str, markdown: str, shown: str) -> None:
    assert LINK.sub(lambda found: relinked(found, here, here.removeprefix("docs/")), markdown) == shown


def test_a_link_without_a_target_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.md"):
        LINK.sub(lambda found: relinked(found, "docs/a.md", "a.md"), "[x](../nowhere.md)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_methods_table_is_up_to_date(page: Path) -> None:
    assert page.read_text() == with_methods(page), "run scripts/make_methods_table.py"


def test_the_picture_of_the_architecture_shows_the_imports_of_the_source() -> None:
    assert ARCHITECTURE.read_text(encoding="utf-8") == draw_architecture(graph()), "run scripts/make_architecture.py"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_what_the_library_computes(name: str) -> None:
    expected = {key: pytest.approx(value, rel=1e-4, abs=1e-6) for key, value in STORED[name].items()}
    assert rounded(PICTURES[name]()) == expected, "run scripts/make_pictures.py"


def test_pictures_are_drawn_from_the_stored_numbers(tmp_path: Path) -> None:
    draw(STORED, tmp_path)
    for name in PAINTERS:
        drawn, stored = (tmp_path / f"{name}.svg").read_text(), (OUT / f"{name}.svg").read_text()
        assert re.findall(r"<text[^>]*>([^<]+)<", drawn) == re.findall(r"<text[^>]*>([^<]+)<", stored)
        assert drawn.count("<path") == stored.count("<path")
        assert len(stored) < 50_000
