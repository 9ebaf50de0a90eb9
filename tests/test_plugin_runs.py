"""glf pretrain --plugin, and every command on its run: as processes, which know nothing of each other."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import forked
from glf.comparison.conduct import compare
from glf.config.evaluation import CompareConfig
from glf.plugins import digest
from plugin_files import OWN_TERMS, constraint, kept_tables

QUICK = "--max-images 96 --val-images 32 --batch-size 32 --image-size 16 --workers 0 --device cpu --epochs 1".split()
QUICK += "--backbone timm:test_resnet".split()
EVALUATED = "--suite knn --no-references --no-artifacts --max-images 200".split()


def glf(*words: object, cwd: Path, cache: str = "cache") -> subprocess.CompletedProcess[str]:
    """A command in a folder, which also has the memory of what was named."""
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "GLF_CACHE": str(cwd / cache)}
    code = f"import os; os.chdir({str(cwd)!r}); from glf.cli import main; main()"
    return forked.run([sys.executable, "-c", code, *map(str, words)], env=env)


def done(*words: object, cwd: Path, cache: str = "cache") -> str:
    ended = glf(*words, cwd=cwd, cache=cache)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def refused(*words: object, cwd: Path, cache: str = "cache") -> str:
    """The one line with which a command ends."""
    ended = glf(*words, cwd=cwd, cache=cache)
    assert ended.returncode == 2, ended.stdout
    (line,) = ended.stderr.splitlines()
    assert line.startswith("glf: ")
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in of the examples, and a run of its method with its constraint."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(OWN_TERMS, folder / "terms.py")
    method = ("--method", "huber+norm", "--options", "norm.weight", "0.2", "weight", "40")
    shown = done("pretrain", "--plugin", "terms.py", *method, *QUICK, "--out", "run", cwd=folder)
    assert "huber+norm = 40 huber + 25 variance + 2 covariance + 0.2 norm" in shown
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, as if it had been trained there."""
    shutil.copytree(trained, tmp_path / "project")
    for path in [tmp_path / "project/run/config.json", *(tmp_path / "project/cache/plugins").iterdir()]:
        path.write_text(path.read_text().replace(str(trained), str(tmp_path / "project")))
    return tmp_path / "project"


def test_every_command_works_on_the_run(project: Path) -> None:
    config = json.loads((project / "run/config.json").read_text())
    (plugin,) = config["plugin"]
    assert plugin.partition("@")[0] == str(project / "terms.py")
    assert len(digest(plugin)) == 64
    assert (config["method"], config["options"]) == ("huber+norm", {"norm.weight": 0.2, "weight": 40.0})
    assert "huber" in done("evaluate", "run", *EVALUATED, cwd=project)
    assert "same" in done("verify", "run", cwd=project)
    done("report", "run", "--out", "page.html", cwd=project)
    assert "huber+norm" in (project / "page.html").read_text()
    done("export", "run", "--format", "safetensors", cwd=project)
    (project / "photos").mkdir()
    for i in range(3):
        Image.fromarray(np.full((20, 20), 80 * i, np.uint8)).save(project / "photos" / f"{i}.png")
    done("embed", "run", "photos", "--out", "e.npy", cwd=project)
    assert np.load(project / "e.npy").shape[0] == 3
    done("doctor", "run", cwd=project)
    done("pretrain", "--resume", "--out", "run", cwd=project)
    done("pretrain", "--resume", "--out", "run", "--plugin", "terms.py", cwd=project)


COMMANDS = ("evaluate run", "pretrain --resume --out run", "export run --format safetensors")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_changed_and_a_missing_file_are_noticed(command: str, project: Path) -> None:
    file = project / "terms.py"
    text = file.read_text()
    file.write_text(text + "# changed\n")
    assert f"the plug-in {file} has changed: its SHA-256 was" in refused(*command.split(), cwd=project)
    file.unlink()
    line = refused(*command.split(), cwd=project)
    assert f"no plug-in {file}, which this run needs" in line
    assert "put the file back, or name the same file at its new place: glf methods --plugin FILE" in line
    (project / "moved.py").write_text(text)
    assert "huber" in done("methods", "--plugin", "moved.py", "huber", cwd=project)
    done(*command.split(), *(EVALUATED if "evaluate" in command else ()), cwd=project)


def test_another_plugin_cannot_continue_a_run(project: Path) -> None:
    (project / "other.py").write_text(constraint("norm"))
    line = refused("pretrain", "--resume", "--out", "run", "--plugin", "other.py", cwd=project)
    assert "other.py" in line
    assert "is not the one that the run was started with" in line


def test_a_run_from_elsewhere_executes_nothing(project: Path) -> None:
    """A cache of another machine: the hash in config.json is right, and the file was never named there."""
    file = project / "terms.py"
    file.write_text(f"import os; os.mkdir({str(project / 'done')!r})\n" + file.read_text())
    content = json.loads((project / "run/config.json").read_text())
    content["plugin"] = [f"{file}@sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"]
    (project / "run/config.json").write_text(json.dumps(content))
    for command in COMMANDS:
        line = refused(*command.split(), cwd=project, cache="fresh")
        assert (
            "is code that you have never named on this machine: read it, then allow it with: glf methods --plugin"
            in line
        )
    done("report", "run", "--out", "page.html", cwd=project, cache="fresh")
    assert not (project / "done").exists()
    done("methods", "--plugin", "terms.py", cwd=project, cache="fresh")
    assert (project / "done").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--method huber", "unknown method 'huber' (methods: simclr, "),
        ("--plugin terms.py --method vicreg+nrm", "unknown constraint 'nrm' - did you mean 'norm'?"),
        ("--plugin terms.py --method vicreg+norm --options norm.wrong 1", "did you mean 'norm.weight'?"),
        ("--plugin terms.py --method vicreg --options norm.weight 1", "vicreg has no option 'norm.weight'"),
        ("--plugin missing.py", "missing.py: it is missing, or not a file"),
        ("--plugin number.py", "number is built as 3, which is not a glf.Term"),
        ("--plugin word.py", "register_method takes a glf.Method, not 'huber'"),
    ],
)
def test_mistakes_end_in_one_line(words: str, said: str, trained: Path) -> None:
    (trained / "number.py").write_text("import glf\nglf.register_constraint('number', lambda: 3)\n")
    (trained / "word.py").write_text("import glf\nglf.register_method('huber')\n")
    assert said in refused("pretrain", *words.split(), *QUICK, "--dry-run", cwd=trained)


def test_both_processes_of_a_run_have_the_plugin(trained: Path) -> None:
    words = ["--plugin", trained / "terms.py", "--method", "huber", *QUICK, "--devices", "2", "--dry-run"]
    ended = forked.run([sys.executable, "-m", "glf", "pretrain", *words])
    assert "dry run: trained two steps" in ended.stdout, ended.stderr


def test_adapt_takes_plugins(trained: Path) -> None:
    short = [word for word in QUICK if word not in ("--backbone", "timm:test_resnet")]
    adapted = ("adapt", "--plugin", "terms.py", "run:run", "--method", "align+norm")
    assert "wrote nothing" in done(*adapted, *short, "--dry-run", cwd=trained)


@pytest.mark.usefixtures("quick_workers")
def test_a_comparison_takes_plugins(tmp_path: Path, few_images: str, console: Console) -> None:
    """Its runs are processes of their own. A copy of the file is the same plug-in, a changed one is not."""
    settings = {"batch_size": "32", "epochs": "1", "val_images": "0", "image_size": "16", "device": "cpu"}
    config = CompareConfig(
        methods=("huber",), constrain=("none", "norm"), data=(few_images,), seeds=1, jobs=1, settings=settings,
        plugin=(str(OWN_TERMS),), evaluation={"suite": "knn"}, out=tmp_path / "compared",
    )  # fmt: skip
    copy = shutil.copy(OWN_TERMS, tmp_path / "copy.py")
    with kept_tables():
        compare(config, console)
        assert "| huber |" in (tmp_path / "compared/table.md").read_text()
        results = {path: path.stat().st_mtime_ns for path in (tmp_path / "compared").rglob("result.json")}
        assert len(results) == 2
        compare(replace(config, plugin=(str(copy),)), console)
        assert {path: path.stat().st_mtime_ns for path in results} == results
    Path(copy).write_text(OWN_TERMS.read_text().replace('"weight": 0.1', '"weight": 0.3'))
    with kept_tables(), pytest.raises(ValueError, match=r"was trained with plugin .*but the study says"):
        compare(replace(config, plugin=(str(copy),)), console)
