"""A run on a folder of photographs is the same run, whether they are packed or decoded by the workers."""

import io
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from glf import rundir
from glf.checkpoint import load_checkpoint
from glf.config.evaluation import EvaluateConfig
from glf.config.training import PretrainConfig
from glf.data.files import Files
from glf.data.images import ChangedFile
from glf.evaluation.suite import evaluate
from glf.reporting.page import write_report
from glf.runfiles import LAST
from glf.train.run import pretrain
from photos import write_photos

Run = Callable[..., Path]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of a run of two epochs of two steps, with a cache of its own."""
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    data = str(write_photos(tmp_path / "camera"))
    return {"data": data, "image_size": 28, "method": "byol+adc", "max_images": None, "val_images": 4, "batch_size": 8}


def packs(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "images").glob("*.npy"))


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_checkpoint(run / LAST)["state_dict"]
    return found


def metrics(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("images_per_second", "data_wait")} for line in lines]


def assert_same(a: Path, b: Path) -> None:
    assert metrics(a) == metrics(b)
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    data = [json.loads((run / "result.json").read_text())["data"] for run in (a, b)]
    assert data[0] == data[1]


def test_packed_and_decoded_give_the_same_run(
    small_run: Run, photos: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    decoded = small_run(**photos, store="decode", workers=2, out=tmp_path / "decoded")
    assert not packs(tmp_path)
    packed = small_run(**photos, store="pack", out=tmp_path / "packed")
    assert len(packs(tmp_path)) == 1
    assert_same(packed, decoded)
    assert len((decoded / "skipped.txt").read_text().splitlines()) == 3
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3 files skipped), decoded at every epoch by 2 workers\n" in printed
    assert "3 files skipped), in memory\n" in printed


def test_a_file_that_vanishes_ends_the_run_in_one_line_and_the_packed_run_goes_on(
    small_run: Run, photos: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = small_run(**photos, epochs=2, store="pack", out=tmp_path / "whole")
    read, calls = Files.read, list[str]()

    def vanishing(self: Files, i: int) -> bytes:
        if multiprocessing.parent_process() is not None:
            calls.append(self.name(i))
            if len(calls) > 16:  # the second epoch of the one worker
                raise FileNotFoundError(2, "No such file or directory")
        return read(self, i)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "read", vanishing)
        with pytest.raises(ChangedFile) as error:
            small_run(**photos, epochs=2, store="decode", workers=1, out=tmp_path / "broken")
    assert error.match(r"^\S+/camera/(boot|coat)/\d+\.jpg was an image .* no longer is: No such file or directory$")
    assert len(metrics(tmp_path / "broken")) == 4  # before training, two steps and a probe
    resumed = small_run(resume=True, store="pack", workers=None, out=tmp_path / "broken", **photos, epochs=2)
    assert rundir.read_config(resumed).store == "decode"
    assert_same(whole, resumed)


def test_a_decoded_run_is_judged_without_a_pack(
    small_run: Run, photos: dict[str, Any], tmp_path: Path, console: Console
) -> None:
    judged = []
    for store in ("decode", "pack"):
        run = small_run(**photos, store=store, workers=0, out=tmp_path / store)
        judged.append(evaluate(EvaluateConfig(run=run, probe_epochs=2), console))
        assert len(packs(tmp_path)) == (store == "pack")
    assert judged[0]["rows"] == judged[1]["rows"]
    assert (judged[0]["train"], judged[0]["test"]) == (20, 4)


def test_names_that_are_no_text_reach_every_file_of_a_run(photos: dict[str, Any], tmp_path: Path) -> None:
    """A class, a broken file and the folder itself have bytes and codes in their names; the console takes text only."""
    data = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n\x1b[2J"))
    Path(photos["data"]).rename(data)
    (data / "boot").rename(data / os.fsdecode(b"b\xfft\x1b[1m"))
    (data / "coat" / "two\nlines.jpg").touch()
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    console = Console(file=shown, width=200)
    config = PretrainConfig(**{**photos, "data": str(data)}, epochs=1, auto=False, out=tmp_path / "run")
    pretrain(config, console)
    evaluate(EvaluateConfig(run=tmp_path / "run", suite=("knn",), references=False), console)
    skipped = (tmp_path / "run" / "skipped.txt").read_text().splitlines()
    assert [line.split(" ")[0] for line in skipped] == [
        "b\\xfft\\x1b[1m/cut.jpg\timage",
        "coat/empty.png\tempty",
        "coat/text.jpg\tnot",
        "coat/two\\nlines.jpg\tempty",
    ]
    printed = shown.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "/caf\\xe9\\n\\x1b[2J: 20 training images" in printed
    assert "files skipped: 4, first b\\xfft\\x1b[1m/cut.jpg: " in printed
    assert "\x1b" not in printed
    assert "\x1b" not in (tmp_path / "run" / "train.log").read_text()
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert os.fsencode(found["data"]["classes"][0]) == b"b\xfft\x1b[1m"
    assert write_report(tmp_path / "run", tmp_path / "page.html") == 1
