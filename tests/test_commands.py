"""Commands as Python functions build the config that the command line builds."""

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import glf
from glf import commands
from glf.commands import COMMANDS, configured
from glf.config.evaluation import EvaluateConfig
from glf.config.training import PretrainConfig

FUNCTIONS = sorted(set(COMMANDS) - {"methods"})  # whose Python equivalent is glf.METHODS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_command_is_a_function_of_its_options(name: str) -> None:
    function = getattr(glf, name)
    assert function is getattr(commands, name)
    assert function.__name__ == name
    assert f"glf {name} --help" in function.__doc__
    assert all(one.kind is one.KEYWORD_ONLY for one in inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_summary_examples_and_a_function_that_exists(name: str) -> None:
    command = COMMANDS[name]
    module, _, function = command.function.partition(":")
    assert command.summary
    assert command.examples
    assert all(example.startswith(f"glf {name}") for example in command.examples)
    parameters = inspect.signature(getattr(__import__(module, fromlist=[function]), function)).parameters
    assert list(parameters)[:2] == ["config", "console"]


def test_no_module_shares_its_name_with_a_public_function() -> None:
    modules = {path.stem for path in Path(glf.__path__[0]).rglob("*.py")}
    packages = {path.name for path in Path(glf.__path__[0]).rglob("*") if path.is_dir()}
    assert not (modules | packages) & set(FUNCTIONS)


def test_defaults_are_those_of_the_command() -> None:
    parameters = inspect.signature(glf.pretrain).parameters
    assert {field.name for field in fields(PretrainConfig)} == set(parameters)
    assert configured(PretrainConfig, {}) == PretrainConfig()


def test_members_of_a_group_as_on_the_command_line() -> None:
    config = configured(PretrainConfig, {"method": "mec+adc", "nu": 0.1, "epochs": 3})
    assert (config.adc.nu, config.epochs) == (0.1, 3)
    evaluation = configured(EvaluateConfig, {"run": "runs/a", "fractions": [0.5], "suite": ["knn"]})
    assert (evaluation.run, evaluation.finetune.fractions, evaluation.suite) == (Path("runs/a"), (0.5,), ("knn",))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="unknown configuration key 'epoch' - did you mean 'epochs'"):
        glf.pretrain(epoch=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="options are given by name, like data='photos/'"):
        glf.pretrain("photos/")  # type: ignore[call-arg]
    with pytest.raises(FileNotFoundError, match="in no/such"):
        glf.doctor("no/such")  # type: ignore[call-arg, arg-type]
    with pytest.raises(FileNotFoundError, match="no backbone at no/such"):
        glf.evaluate("no/such")  # type: ignore[call-arg, arg-type]

    code = "import sys, glf; print(glf.evaluate.__name__, glf.pretrain.__name__, 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["evaluate", "pretrain", "False"]


def test_a_report_from_python_writes_its_figures_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = {"max_images": 128, "batch_size": 64, "epochs": 1, "val_images": 0, "method": "simclr"}
    glf.pretrain(data="fashion-mini", out=run, **small)  # type: ignore[arg-type]
    glf.report(runs=run, out=tmp_path / "page.html", figures=tmp_path / "figures")
    assert "<html" in (tmp_path / "page.html").read_text()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} >= {".svg", ".png", ".csv", ".json"}
