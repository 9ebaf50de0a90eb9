"""The commands as functions build what the command line builds."""

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import glf
from glf.api import configured
from glf.config.evaluation import EvaluateConfig
from glf.config.training import PretrainConfig


@pytest.mark.parametrize("name", glf._COMMANDS)
def test_every_command_is_a_function_with_its_settings(name: str) -> None:
    from glf import api

    function = getattr(api, name)
    assert callable(getattr(glf, name))
    assert function.__name__ == name
    assert f"glf {name} --help" in function.__doc__
    assert all(one.kind is one.KEYWORD_ONLY for one in inspect.signature(function).parameters.values())


def test_the_defaults_are_those_of_the_command() -> None:
    parameters = inspect.signature(glf.pretrain).parameters
    assert {field.name for field in fields(PretrainConfig)} == set(parameters)
    assert configured(PretrainConfig, {}) == PretrainConfig()


def test_members_of_a_group_and_recipes_as_on_the_command_line() -> None:
    config = configured(PretrainConfig, {"method": "mec+adc", "recipe": "tiny", "nu": 0.1, "epochs": 3})
    assert (config.adc.nu, config.epochs, config.augment, config.options["distortion"]) == (0.1, 3, "gentle", 512.0)
    judged = configured(EvaluateConfig, {"run": "runs/a", "fractions": [0.5], "suite": ["knn"]})
    assert (judged.run, judged.finetune.fractions, judged.suite) == (Path("runs/a"), (0.5,), ("knn",))


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="unknown configuration key 'epoch' - did you mean 'epochs'"):
        glf.pretrain(epoch=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="settings are given by name, like data='photos/'"):
        glf.pretrain("photos/")  # type: ignore[call-arg]
    with pytest.raises(FileNotFoundError, match="in no/such"):
        glf.doctor("no/such")  # type: ignore[call-arg, arg-type]


def test_a_module_with_the_name_of_a_command_can_be_called_and_is_still_a_module() -> None:
    import glf.evaluate.suite as suite

    assert suite.evaluate.__module__ == "glf.evaluation.suite"
    assert isinstance(sys.modules["glf"].evaluate, ModuleType)
    with pytest.raises(FileNotFoundError, match="no backbone at no/such"):
        glf.evaluate("no/such")  # type: ignore[call-arg, arg-type]


def test_the_function_is_there_before_any_import_and_brings_no_torch() -> None:
    code = "import sys, glf; print(glf.evaluation.__name__, glf.pretrain.__name__, 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["evaluate", "pretrain", "False"]


def test_a_report_from_python_writes_its_figures_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = {"max_images": 128, "batch_size": 64, "epochs": 1, "val_images": 0, "method": "simclr"}
    glf.pretrain(data="fashion-mini", out=run, **small)  # type: ignore[arg-type]
    glf.report(runs=run, out=tmp_path / "page.html", figures=tmp_path / "figures")
    assert "<html" in (tmp_path / "page.html").read_text()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} >= {".svg", ".png", ".csv", ".json"}
