"""The built wheel, alone in a clean environment, with its data and its licence."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import glf

ROOT = Path(__file__).parent.parent
USE = "import glf; print(glf.__file__, len(glf.load_images('fashion-mini')), glf.parse('byol+adc').name)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True)
    return next(out.glob("glf-*.whl"))


def test_it_holds_data_types_and_licences(wheel: Path) -> None:
    names = {name: info.file_size for name in zipfile.ZipFile(wheel).namelist() for info in [_info(wheel, name)]}
    assert 1_000_000 < names["glf/data/embedded/fashion_mini.npz"] <= 6_000_000
    assert {"glf/py.typed", "glf/__init__.pyi"} <= names.keys()
    page = [path for path in (ROOT / "src/glf/reporting").rglob("*") if path.suffix in (".html", ".css", ".js")]
    assert {path.relative_to(ROOT / "src").as_posix() for path in page} <= names.keys()
    assert wheel.name.startswith(f"glf-{glf.__version__}-")
    assert "MIT" in zipfile.ZipFile(wheel).read("glf/data/embedded/FASHION-MNIST-LICENSE.txt").decode()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]


def _info(wheel: Path, name: str) -> zipfile.ZipInfo:
    return zipfile.ZipFile(wheel).getinfo(name)


def _installed(place: Path, wheel: Path, *options: str) -> Path:
    venv.create(place, with_pip=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *options, str(wheel)]
    subprocess.run(pip, check=True)
    return place / "bin"


def _use(binaries: Path, place: Path, **environment: str) -> None:
    """Run it from elsewhere, so that nothing of the checkout can be picked up."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment
    run = [str(binaries / "python"), "-c", USE]
    out = subprocess.run(run, capture_output=True, text=True, check=True, env=env, cwd=place).stdout.split()
    assert Path(out[0]).is_relative_to(place)
    assert out[1:] == ["10000", "byol+adc"]
    shown = subprocess.run([binaries / "glf", "--help"], capture_output=True, text=True, check=True, env=env, cwd=place)
    assert "pretrain" in shown.stdout


def test_the_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are lent by this environment (an editable glf is not found that way), for speed."""
    binaries = _installed(tmp_path / "clean", wheel, "--no-deps")
    _use(binaries, tmp_path, PYTHONPATH=sysconfig.get_paths()["purelib"])


@pytest.mark.slow
def test_the_wheel_brings_all_it_needs(wheel: Path, tmp_path: Path) -> None:
    """A truly clean environment: everything is installed from the wheel's own requirements."""
    binaries = _installed(tmp_path / "clean", wheel, "--constraint", str(ROOT / "constraints.txt"))
    _use(binaries, tmp_path)
    dry = [binaries / "glf", "pretrain", "--dry-run", "--max-images", "300", "--batch-size", "64", "--method", "byol"]
    done = subprocess.run(dry, capture_output=True, text=True, cwd=tmp_path)
    assert "wrote nothing" in done.stdout, done.stderr
