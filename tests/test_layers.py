"""Data goes one way: a module imports only from modules to its left."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "glf"
ORDER = [
    "runfiles", "files", "ui", "malloc", "device", "types", "distributed", "config", "schema", "data", "nn", "terms",
    "similarity", "align", "constrain", "relations", "objective", "plugins", "methods", "recipes", "measure",
    "checkpoint", "result", "rundir", "loggers", "health", "train", "adaptation", "sharding", "evaluation",
    "inference", "exporting", "reporting", "comparison", "listing", "commands", "cli", "__main__",
]  # fmt: skip
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def imports(file: str) -> set[str]:
    """The names of glf's own modules that a file imports at run time."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "glf":
            found |= {f"glf.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.startswith("glf.")}


def layer(module: str) -> str:
    return module.removeprefix("glf.").partition(".")[0]


def test_every_module_has_its_place() -> None:
    assert {file.partition("/")[0].removesuffix(".py") for file in FILES} - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("file", [file for file in FILES if file != "__init__.py"])
def test_imports_point_to_the_left(file: str) -> None:
    here = ORDER.index(file.partition("/")[0].removesuffix(".py"))
    to_the_right = [name for name in imports(file) if ORDER.index(layer(name)) > here]
    assert not to_the_right


def test_training_never_imports_evaluation_and_the_report_reads_results_only() -> None:
    for file in FILES:
        if file.startswith("train/"):
            assert not any(layer(name) in ("evaluation", "reporting") for name in imports(file))
        if file.startswith("reporting/"):
            command = {"config", "ui"} if file == "reporting/page.py" else set()  # of `glf report`
            other = imports(file) - {"glf.measure.intervals"}  # numbers in, numbers out
            assert {layer(name) for name in other} <= {"files", "result", "runfiles", "schema", "reporting"} | command


def test_one_file_talks_to_torch_distributed() -> None:
    assert [file for file in FILES if "torch.distributed" in _imported(file)] == ["distributed.py"]


def _imported(file: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse((SOURCE / file).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names | {name.rpartition(".")[0] for name in names}


def test_files_stay_small() -> None:
    assert not {file for file in FILES if len((SOURCE / file).read_text().splitlines()) > 300}
