"""Every Python snippet of README and docs runs as it stands; every file they link to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
SNIPPETS = [
    pytest.param(code, id=f"{page.name}-{i}")
    for page in PAGES
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
]


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 3


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    linked = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:docs|tests|examples|benchmarks|scripts)/[\w./-]+)`", text)
    missing = [name for name in linked if not (page.parent / name).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_equations_name_real_functions_and_tests() -> None:
    from importlib import import_module

    text = (ROOT / "docs" / "equations.md").read_text()
    named = re.findall(r"`((?:align|constrain|objective|measure|evaluate)\.[\w.]+)`", text)
    assert len(named) >= 10
    for path in named:
        module, _, attribute = path.rpartition(".")
        assert hasattr(import_module(f"glf.{module}"), attribute), path
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}" in tests, name
