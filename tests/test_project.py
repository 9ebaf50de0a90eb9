"""The project keeps its own rules."""

import re
import subprocess
from pathlib import Path

import pytest

import glf
from glf.comparison.study import from_file
from test_layers import FILES, ORDER

ROOT = Path(__file__).parent.parent


def test_bare_make_lists_the_targets() -> None:
    shown = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    for target in ("pretrain", "test", "test-slow", "check", "install"):
        assert re.search(rf"^{target} +\w", shown, flags=re.MULTILINE), target


def test_ci_calls_the_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    readme = (ROOT / "README.md").read_text()
    assert "make pretrain" in readme
    assert "make test" in readme


def test_the_demo_has_the_settings_of_its_study() -> None:
    makefile = (ROOT / "Makefile").read_text()
    flags = " ".join(re.findall(r"^(?:DEMO|PRIOR) := (.*)$", makefile, flags=re.MULTILINE)).split()
    study = from_file(ROOT / "benchmarks" / "studies" / "demo.toml", "tiny")
    settings = {"data": study.data[0], **study.settings, "seed": "$(SEED)"}
    asked = dict(zip(flags[::2], flags[1::2], strict=True))
    assert asked.keys() == {"--" + name.replace("_", "-") for name in settings}
    for name, value in settings.items():
        given = asked["--" + name.replace("_", "-")]
        assert (float(given) if isinstance(value, int | float) else given) == value, name


def test_the_version_is_written_once() -> None:
    """A literal in the package, which setuptools reads without importing glf; test_package.py checks the wheel."""
    assert f'\n__version__ = "{glf.__version__}"\n' in (ROOT / "src" / "glf" / "__init__.py").read_text()
    assert 'version = { attr = "glf.__version__" }' in (ROOT / "pyproject.toml").read_text()
    for file in ("pyproject.toml", "CITATION.cff"):
        assert not re.search(r"^version\W+\d", (ROOT / file).read_text(), flags=re.MULTILINE), file


def test_dependencies_are_ranges_and_pins_are_in_one_file() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert "==" not in pyproject
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in pins)


def test_what_everyone_installs_stays_small() -> None:
    core = "torch torchvision timm lightning scikit-learn scipy safetensors jinja2 rich tyro"
    core += " filelock jaxtyping lazy_loader numpy pillow"
    listed = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    names = set(re.findall(r'"([\w-]+)[^"]*"', listed[1]))
    assert names - {"tomli"} == set(core.split())  # tomli is part of Python from 3.11 on


def test_the_tree_in_contributing_is_the_tree_of_the_source() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (tree,) = re.findall(r"```text\nsrc/glf/\n(.*?)```", text, flags=re.DOTALL)
    modules = re.findall(r"^  (\w+)/?(?= |$)", tree, flags=re.MULTILINE)
    assert modules == ORDER
    listed, parent = set(), ""
    for indent, name in re.findall(r"^( +)(\w+/)", tree, flags=re.MULTILINE):
        parent = name if len(indent) == 2 else parent
        listed.add((name if len(indent) == 2 else parent + name).rstrip("/"))
    assert listed == {str(Path(file).parent) for file in FILES} - {"."}


def test_the_architecture_page_names_files_and_names_of_the_source() -> None:
    """Every module is described; names in a line of a table occur in a file that the line names."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "glf"
    for file in re.findall(r"`([\w/]+\.pyi?)`", page):
        assert (source / file).is_file() or (ROOT / file).is_file(), file
    assert set(re.findall(r"\*\*`(\w+)`\*\*", page)) <= set(ORDER)
    assert all(f"`{module}`" in page for module in ORDER[:-1])
    lines = [line for line in page.splitlines() if line.startswith("| ") and ".py`" in line]
    assert len(lines) >= 10
    for line in lines:
        code = re.findall(r"`([^`]+)`", line)
        texts = [(source / one).read_text() for one in code if one.endswith((".py", ".pyi"))]
        for name in (one for one in code if one.isidentifier() and not (source / one).is_dir()):
            assert any(re.search(rf"\b{name}\b", text) for text in texts), f"{name}: {line}"


def test_the_changelog_has_numerics() -> None:
    assert "### Numerics" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_unfinished(word: str) -> None:
    found = subprocess.run(["git", "grep", "-lIw", word, "--", "src"], capture_output=True, text=True, cwd=ROOT).stdout
    assert found == ""


# Words with a plain equivalent, which readers search for: evaluate, again, resume, not significant, problem, k-NN.
OLD_WORDS = (
    r"judg",
    r"\banew\b",
    r"\b(go|goes|going|gone|went)\s+on\b",
    r"\btold\s+apart\b",
    r"\bsick",
    r"\b5-nn\b",
)
WRITTEN = [path for kind in ("py", "pyi", "css", "js", "html") for path in (ROOT / "src").rglob(f"*.{kind}")]
WRITTEN += [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("word", OLD_WORDS)
def test_old_words_are_gone(word: str) -> None:
    """In names, docstrings, comments, messages and docs. The changelog still speaks of what was renamed."""
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in sorted(WRITTEN)
        for text in [path.read_text()]
        for match in re.finditer(word, text, flags=re.IGNORECASE)
    ]
    assert not found, "\n".join(found)
