"""What is built, alone in a clean environment, with its data and its licence; and run without an installation."""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import glf

ROOT = Path(__file__).parent.parent
CALLS = {"--help": "pretrain", "methods": "barlow_twins"}  # with a word that they print
DRY_RUN = "pretrain --dry-run --max-images 300 --batch-size 64 --method byol"
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
    for arguments, word in CALLS.items():
        call = [binaries / "glf", *arguments.split()]
        assert word in subprocess.run(call, capture_output=True, text=True, check=True, env=env, cwd=place).stdout


def test_the_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are lent by this environment (an editable glf is not found that way), for speed."""
    binaries = _installed(tmp_path / "clean", wheel, "--no-deps")
    _use(binaries, tmp_path, PYTHONPATH=sysconfig.get_paths()["purelib"])


def _built(source: Path, out: Path) -> Path:
    """The wheel of a source tree or of a packed one."""
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(source)], check=True)
    return next(out.glob("glf-*.whl"))


@pytest.mark.slow
def test_the_packed_source_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(ROOT)], check=True)
    (packed,) = tmp_path.glob("glf-*.tar.gz")
    shutil.unpack_archive(packed, tmp_path, filter="data")
    again = _built(tmp_path / packed.name.removesuffix(".tar.gz"), tmp_path / "again")
    contents = [
        {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist() if "RECORD" not in name}
        for archive in map(zipfile.ZipFile, (wheel, again))
    ]
    assert contents[0] == contents[1]


@pytest.mark.slow
def test_the_wheel_brings_all_it_needs(wheel: Path, tmp_path: Path) -> None:
    """A truly clean environment: everything is installed from the wheel's own requirements."""
    binaries = _installed(tmp_path / "clean", wheel, "--constraint", str(ROOT / "constraints.txt"))
    _use(binaries, tmp_path)
    done = subprocess.run([binaries / "glf", *DRY_RUN.split()], capture_output=True, text=True, cwd=tmp_path)
    assert "wrote nothing" in done.stdout, done.stderr


def _settings_of_pip() -> dict[str, str]:
    """What this machine tells pip, such as an index of its own; a line is ``global.index-url='...'``."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    lines = [line.partition("=") for line in listed.stdout.splitlines()]
    return {name.rpartition(".")[2]: ast.literal_eval(value) for name, _, value in lines}


def _for_uv() -> dict[str, str]:
    """The same for uv, which does not read pip's configuration; versions are pinned as everywhere."""
    names = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
    settings = _settings_of_pip()
    found = {variable: " ".join(settings[name].split()) for name, variable in names.items() if name in settings}
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = found["UV_FIND_LINKS"].replace(" ", ",")
    if "cert" in settings:
        found["SSL_CERT_FILE"] = settings["cert"]
    return found | {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_CONSTRAINT": str(ROOT / "constraints.txt")}


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_it_runs_without_an_installation_by_hand(tool: str, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / tool
    assert program.exists(), "pip install 'glf[slow]'"
    start = {
        "uvx": [program, "--python", sys.executable, "--from", f"{ROOT}[prior]", "glf"],
        "pipx": [program, "run", "--python", sys.executable, "--spec", f"{ROOT}[prior]", "glf"],
    }[tool]
    homes = {"UV_CACHE_DIR": "uv", "PIPX_HOME": "pipx", "PIP_CACHE_DIR": "pip", "GLF_CACHE": "cache"}
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | _for_uv()
    env |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), **{name: str(tmp_path / at) for name, at in homes.items()}}
    for arguments, word in {**CALLS, DRY_RUN: "wrote nothing"}.items():
        call = [*map(str, start), *arguments.split()]
        done = subprocess.run(call, capture_output=True, text=True, env=env, cwd=tmp_path)
        assert word in done.stdout, done.stdout + done.stderr
