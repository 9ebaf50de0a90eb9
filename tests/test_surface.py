"""The public surface: what __all__ promises is there, and nothing is imported before it is used."""

import subprocess
import sys

import glf
from glf.commands import COMMANDS


def test_all_names_exist_and_are_documented() -> None:
    assert glf.__all__ == sorted(glf.__all__, key=glf.__all__.index)
    assert set(dir(glf)) == set(glf.__all__)
    for name in glf.__all__:
        value = getattr(glf, name)
        assert value is not None
        if callable(value):
            assert value.__doc__, f"{name} has no docstring"


def test_about_thirty_names_beside_the_commands() -> None:
    assert 15 <= len(set(glf.__all__) - set(COMMANDS)) <= 35


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(glf, "Adc")


def test_importing_glf_imports_neither_torch_nor_lightning() -> None:
    code = "import sys, glf, glf.cli; print([m for m in ('torch', 'lightning', 'timm', 'sklearn') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
