"""Outputs never replace a file of the user's, or of a run: refused before any work, through the command line."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glf.cli import main
from glf.config.training import PretrainConfig
from glf.data.sources import load_images
from glf.files import atomic_write, sidecar
from glf.nn.weights import load_backbone
from glf.runfiles import PAGE_MARK
from glf.train.run import pretrain
from reporting.samples import a_comparison


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, some photos, and a user's files."""
    place = tmp_path_factory.mktemp("place")
    config = PretrainConfig(
        backbone="timm:test_resnet", stem="standard", max_images=96, batch_size=32, epochs=1, val_images=16, auto=False
    )
    pretrain(replace(config, device="cpu", out=place / "a"))
    (place / "photos").mkdir()
    for number, pixels in enumerate(load_images("fashion-mini").pixels[:4]):
        Image.fromarray(pixels[:, :, 0]).save(place / "photos" / f"{number}.png")
    (place / "mine").mkdir()
    for name in ("notes.html", "table.csv", "table.npy", "table.parquet", "README.md", "artifacts", "table.md"):
        (place / "mine" / name).write_text("the only copy of something")
    (place / "mine" / "link.html").symlink_to("notes.html")
    (place / "mine" / "loop.html").symlink_to("loop.html")
    return place


@pytest.fixture(autouse=True)
def _in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def everything(place: Path) -> dict[str, object]:
    """All files with their kinds and contents, as links are."""
    return {
        str(path.relative_to(place)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def glf(*arguments: str) -> int:
    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(
    "command",
    [
        "embed pixels photos --out a/config.json/x.npy",
        "embed pixels photos --out mine/table.npy",
        "embed pixels photos --out mine/table.csv",
        "embed pixels photos --out mine/table.parquet",
        "search pixels photos/0.png photos --out mine/table.csv",
        "outliers pixels photos --out mine/table.csv",
        "outliers pixels photos --out a/metrics.jsonl",
        "report a --out a/result.json",
        "report a --out a/config.json",
        "report a --out mine/notes.html",
        "report a --out mine/link.html",
        "report a --out mine/loop.html",
        "report a --out mine",
        "report a --out /dev/null",
        "report a --out page.html --figures mine",
        "export a --format timm --out a",
        "export a --format safetensors --out a",
        "export a --format torchvision --out mine",
        "export a --format onnx --out mine",
        "push a user/name --dry-run --out mine",
        "push a user/name --dry-run --out a/result.json",
        "evaluate a --out mine",
        "evaluate a --out mine/table.csv",
        "compare --out mine",
        "pretrain --data photos --out mine --overwrite",
    ],
)
def test_what_the_command_did_not_write_is_not_replaced(
    command: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(place)
    assert glf(*command.split()) == 2
    assert everything(place) == before
    shown = capsys.readouterr().err
    assert len(shown.strip().splitlines()) == 1
    assert any(words in shown for words in ("choose", "give the name", "should end", "must end")), shown


def test_an_empty_file_of_a_run_is_not_replaced_but_any_other_is(place: Path, tmp_path: Path) -> None:
    (place / "a" / "skipped.txt").write_text("")
    (tmp_path / "page.html").write_text("")
    assert glf("report", "a", "--out", "a/skipped.txt") == 2
    assert (place / "a" / "skipped.txt").read_text() == ""
    assert glf("report", "a", "--out", str(tmp_path / "page.html")) == 0
    assert (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("name", ["result", "config"])
def test_sidecars_have_names_of_their_own(name: str, place: Path) -> None:
    """result.npy in a run: result.json is the run's."""
    before = everything(place)
    out = place / "a" / f"{name}.npy"
    assert glf("embed", "pixels", "photos", "--out", str(out)) == 0
    assert len(np.load(out)) == 4
    assert len(json.loads(sidecar(out, "json").read_text())["paths"]) == 4
    for path in (out, sidecar(out, "json")):
        path.unlink()
    assert everything(place) == before


@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("embed pixels photos --out {}", "e.npy"),
        ("embed pixels photos --out {}", "e.csv"),
        ("embed pixels photos --out {}", "e.parquet"),
        ("search pixels photos/0.png photos --out {}", "s.csv"),
        ("outliers pixels photos --out {}", "o.csv"),
        ("report a --out {}", "r.html"),
        ("report a --out r2.html --figures {}", "figures"),
        ("export a --format timm --out {}", "exported"),
        ("export a --format safetensors --out {}", "x.safetensors"),
        ("export a --format safetensors --out {}", "exported"),
        ("push a user/name --dry-run --out {}", "pushed"),
        ("export a --format timm --out {} ", "exported"),  # again: the card still lists its files
    ],
)
def test_the_command_replaces_what_it_wrote_itself(command: str, out: str) -> None:
    for _ in range(2):
        assert glf(*command.format(out).split()) == 0


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("embed pixels photos --out", "e.npy"),
        ("embed pixels photos --out", "e.csv"),
        ("embed pixels photos --out", "e.parquet"),
        ("search pixels photos/0.png photos --out", "s.csv"),
        ("outliers pixels photos --out", "o.csv"),
    ],
)
def test_a_table_that_was_edited_or_exchanged_is_the_users(command: str, name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    assert glf(*command.split(), str(out)) == 0
    written = out.read_bytes()
    out.write_bytes(written[:-1] + b"7")  # of the same size, and with the same header
    before = everything(tmp_path)
    assert glf(*command.split(), str(out)) == 2
    assert everything(tmp_path) == before
    out.write_bytes(written)
    assert glf(*command.split(), str(out)) == 0
    other = "outliers pixels photos --out" if name != "o.csv" else "search pixels photos/0.png photos --out"
    assert glf(*other.split(), str(out)) == 2
    sidecar(out, "json").unlink()
    assert glf(*command.split(), str(out)) == 2, "written by hand, it may start like one of ours"


def test_a_link_stays_a_link_and_a_pipe_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("")
    (tmp_path / "link.html").symlink_to("page.html")
    assert glf("report", "a", "--out", str(tmp_path / "link.html")) == 0
    assert (tmp_path / "link.html").is_symlink()
    assert PAGE_MARK in (tmp_path / "page.html").read_text()
    os.mkfifo(tmp_path / "pipe.html")
    assert glf("report", "a", "--out", str(tmp_path / "pipe.html")) == 2
    assert stat.S_ISFIFO((tmp_path / "pipe.html").stat().st_mode)
    with pytest.raises(ValueError, match="a device or a pipe"), atomic_write(tmp_path / "pipe.html"):
        pass


def test_a_run_of_another_library_is_not_overwritten(tmp_path: Path) -> None:
    """Theirs have a method, a backbone and a seed too, and checkpoints."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last.ckpt").write_text("the only copy of something")
    theirs = {"method": "simclr", "data": {"name": "photos"}, "backbone": {"name": "resnet18"}, "seed": 5, "schema": 2}
    (tmp_path / "run" / "config.json").write_text(json.dumps(theirs))
    before = everything(tmp_path)
    for command in ("pretrain", "adapt"):
        assert glf(*f"{command} --data photos --out {tmp_path / 'run'} --overwrite".split()) == 2
    assert everything(tmp_path) == before


def test_the_page_of_a_comparison_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_comparison(tmp_path / "study")
    (tmp_path / "study" / "report.html").write_text("the only copy of something")
    before = everything(tmp_path)
    assert glf("compare", "--methods", "simclr", "--out", str(tmp_path / "study")) == 2
    assert "report.html exists and was not written by this command" in capsys.readouterr().err
    assert everything(tmp_path) == before


def test_a_pipe_without_a_name_is_refused(tmp_path: Path) -> None:
    """/dev/stdout of `glf report ... | less`."""
    code = "from glf.cli import main; main()"
    command = [sys.executable, "-c", code, "report", "a", "--out", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "glf: /dev/stdout is a device or a pipe, not a file: choose another name\n",
    )


def test_overwriting_leaves_other_folders_and_other_files_alone(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of Hugging Face has a config.json too, and a user may keep notes in a run directory."""
    settings = "--max-images 96 --batch-size 32 --epochs 1 --val-images 16 --no-auto --device cpu --overwrite".split()
    assert glf("export", "a", "--format", "timm", "--out", str(tmp_path / "model")) == 0
    before = everything(tmp_path)
    assert glf("pretrain", "--out", str(tmp_path / "model"), *settings) == 2
    assert everything(tmp_path) == before
    assert "is not a run directory" in capsys.readouterr().err
    run = tmp_path / "run"
    assert glf("pretrain", "--out", str(run), *settings) == 0
    (run / "notes.txt").write_text("the only copy of something")
    mine = ("notes.txt", "checkpoints/mine.ckpt", "checkpoints/epoch-mine.ckpt", "artifacts/a.png", "report.html")
    theirs = ("checkpoints/epoch-00001.ckpt", "artifacts/map.webp", "features/features-0-0/journal.jsonl")
    for name in (*mine, *theirs, "export/timm/README.md", "export/timm/mine.md"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("the only copy of something")
    assert glf("pretrain", "--out", str(run), "--seed", "1", *settings) == 0
    for name in (*mine, "export/timm/mine.md"):
        assert (run / name).read_text() == "the only copy of something"
    for name in (*theirs, "export/timm/README.md", "features"):
        assert not (run / name).exists()
    assert load_backbone(run).width
