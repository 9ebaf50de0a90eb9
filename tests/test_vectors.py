"""The snippets of docs/vectors.md give the neighbours of `glf search`, by the real libraries."""

import re
import shutil
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from glf.config.inference import EmbedConfig, SearchConfig
from glf.inference.embedding import embed
from glf.inference.image_search import search
from photos import write_photos

PAGE = (Path(__file__).parent.parent / "docs" / "vectors.md").read_text()
BLOCKS = {
    section.partition("\n")[0]: code
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    for code in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
}
BEGINNING = BLOCKS.pop("Read the table")
SLOW = {"DuckDB": "duckdb", "LanceDB": "lancedb"}  # large: installed by make test-slow


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with both tables, and the paths that glf search finds."""
    folder = tmp_path_factory.mktemp("vectors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("GLF_CACHE", str(folder / "cache"))
        write_photos(Path("photos"), 40)
        Path("queries").mkdir()
        shutil.move("photos/coat/001.jpg", "queries/a.jpg")
        shutil.move("photos/boot/004.jpg", "queries/b.jpg")
        quiet = Console(file=StringIO())
        for name in ("photos", "queries"):
            embed(EmbedConfig(run="pixels", data=name, out=Path(f"{name}.parquet")), quiet)
        hits = search(SearchConfig(run="pixels", images=("queries/a.jpg", "photos"), k=5), quiet)
    return folder, [hit.path for hit in hits]


def test_every_library_of_the_page_has_a_snippet_of_few_lines() -> None:
    assert set(BLOCKS) == {"scikit-learn", "FAISS", "DuckDB", "LanceDB", "Qdrant"}
    assert all(len([line for line in code.splitlines() if line]) <= 6 for code in BLOCKS.values())


@pytest.mark.parametrize(
    "library", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in BLOCKS]
)
def test_a_snippet_finds_what_glf_search_finds(
    library: str, tables: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library in SLOW:
        pytest.importorskip(SLOW[library])
    folder, expected = tables
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    variables: dict[str, object] = {}
    exec(compile(BEGINNING + BLOCKS[library], library, "exec"), variables)
    assert variables["found"] == expected
    assert len(set(expected)) == 5
