"""Every snippet of README and docs runs, every command and flag exists, every link has a target."""

import contextlib
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from glf.cli import parse_config
from glf.commands import COMMANDS
from glf.health import rules
from glf.train import auto_config

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
SNIPPETS = [
    pytest.param(code, id=f"{page.name}-{i}")
    for page in PAGES
    # Run in other ways: tests/test_vectors.py runs the snippets on tables, and compares what they find.
    if page.name not in ("vectors.md", "adding_a_term.md")
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
]
# Programs called by the pages. Stand-ins only record their arguments; srun runs its command.
PROGRAMS = ("glf", "make", "pip", "uvx", "pipx", "docker", "python", "torchrun", "scontrol", "srun")
NOTE = '#!/bin/bash\nprintf "%s\\0" "${0##*/}" "$@" >> "$CALLS"; printf "\\n" >> "$CALLS"\n'
START = '#!/bin/bash\nexec "$@"\n'


def shell(page: Path) -> list[str]:
    """Shell commands of a page: fenced, or indented and beginning with one of the programs."""
    text = page.read_text()
    fenced = re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, flags=re.DOTALL)
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    indented = [block.replace("\n    ", "\n").strip() for block in re.findall(r"\n\n((?: {4}.*\n)+)", prose)]
    return fenced + [block for block in indented if block.split()[0] in PROGRAMS]


def inline(page: Path) -> list[str]:
    """Inline code of a page."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


SHELL = [pytest.param(code, id=f"{page.name}-{i}") for page in PAGES for i, code in enumerate(shell(page))]


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 3
    assert len(SHELL) >= 15


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippet(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "snippet", "exec"), {"__name__": "snippet"})


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name in PROGRAMS:
        (folder / name).write_text(START if name == "srun" else NOTE)
        (folder / name).chmod(0o755)
    return folder


def check_parses(arguments: list[str]) -> None:
    """The command line parses these arguments; nothing is run."""
    name, *rest = (argument for argument in arguments if argument != "...")
    try:
        parse_config(name, rest)
    except SystemExit as end:
        if end.code:  # 0 after --help
            pytest.fail(f"glf {' '.join(arguments)}")


@pytest.mark.parametrize("code", SHELL)
def test_commands_are_understood(code: str, programs: Path, tmp_path: Path) -> None:
    """Bash runs the snippet with the stand-ins; glf's parser, make or the disk then checks each recorded call."""
    calls, bash = tmp_path / "calls", shutil.which("bash")
    assert bash
    environment = {"PATH": str(programs), "CALLS": str(calls)}
    done = subprocess.run([bash, "-ec", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = calls.read_text().split("\0\n")[:-1]
    assert lines
    for program, *arguments in (line.split("\0") for line in lines):
        if program == "torchrun":
            check_parses(arguments[arguments.index("-m") + 2 :])
        elif program == "glf":
            check_parses(arguments)
        elif program in ("uvx", "pipx"):
            check_parses(arguments[arguments.index("glf") + 1 :])
        elif program == "make":
            planned = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True)
            assert planned.returncode == 0, planned.stderr
        elif program == "python":
            assert (ROOT / arguments[0]).is_file(), arguments[0]


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """The flags of each command, from its help."""
    return {name: set(re.findall(r"(?:^[^\w-]*|, )(--[a-z][a-z-]+)", helped(name), re.MULTILINE)) for name in COMMANDS}


def helped(command: str) -> str:
    with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
        parse_config(command, ["--help"])
    return shown.getvalue()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_commands_and_flags_within_lines_exist(page: Path, flags: dict[str, set[str]]) -> None:
    """The changelog also names flags that were removed."""
    for code in inline(page):
        used = set(re.findall(r"(?:^|[\s(])(--[a-z][a-z-]+)", code))
        if match := re.match(r"glf ([a-z]+)", code):
            assert match[1] in flags, code
            assert used <= flags[match[1]] | {"--help"}, code
        elif code.startswith("--"):
            assert used <= set().union(*flags.values()), code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    linked = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:docs|tests|examples|benchmarks|scripts)/[\w./-]+)`", text)
    missing = [name for name in linked if not (page.parent / name).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing


def test_the_doctor_page_names_every_problem_and_threshold() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert all(name in page for name in rules.ADVICE)
    limits = (rules.CONSTANT, rules.TWINS, rules.BETWEEN, rules.USED, rules.FEW, rules.FALLEN, rules.SHARE_OF_FULL)
    limits += (rules.EXPLODED, rules.DEAD, rules.DOMINATES, rules.LONG, rules.STARVED, rules.SETTLED)
    assert set(limits) <= {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", page)}


def test_the_page_of_automatic_defaults_has_their_numbers() -> None:
    page = (ROOT / "docs" / "automatic.md").read_text()
    numbers = (
        *auto_config.STEPS.values(),
        *auto_config.BATCH.values(),
        auto_config.FEW_IMAGES,
        auto_config.MOST_EPOCHS,
    )
    numbers += (auto_config.SAMPLE, auto_config.CPU_SIDE, auto_config.GPU_SIDE, auto_config.LEAST_BATCH)
    assert all(f"{number:,}" in page for number in numbers)


def test_equations_name_real_functions_and_tests() -> None:
    from importlib import import_module

    text = (ROOT / "docs" / "equations.md").read_text()
    named = re.findall(r"`((?:align|constrain|objective|measure|evaluation)\.[\w.]+)`", text)
    assert len(named) >= 10
    for path in named:
        module, _, attribute = path.rpartition(".")
        assert hasattr(import_module(f"glf.{module}"), attribute), path
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", text):
        assert f"def {name}" in tests, name
