"""The project keeps its own rules."""

import re
import subprocess
from pathlib import Path

import pytest

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


def test_one_version_everywhere() -> None:
    import glf

    assert f'version = "{glf.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {glf.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_dependencies_are_ranges_and_pins_are_in_one_file() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert "==" not in pyproject
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all("==" in line for line in pins)


def test_what_everyone_installs_stays_small() -> None:
    core = "torch torchvision timm lightning scikit-learn scipy safetensors matplotlib rich tyro jaxtyping numpy pillow"
    listed = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    names = set(re.findall(r'"([\w-]+)[^"]*"', listed[1]))
    assert names - {"tomli"} == set(core.split())  # tomli is part of Python from 3.11 on


def test_the_changelog_has_numerics() -> None:
    assert "### Numerics" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_unfinished(word: str) -> None:
    found = subprocess.run(["git", "grep", "-lIw", word, "--", "src"], capture_output=True, text=True, cwd=ROOT).stdout
    assert found == ""
