"""A disk that is full: what was there stays whole, nothing half-written is left, and one line says what to do."""

from collections.abc import Callable
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from glf.checkpoint import load_checkpoint, save_checkpoint
from glf.config.training import PretrainConfig
from glf.data.sources import load_images
from glf.nn.backbone import Backbone
from glf.nn.features import extract
from glf.nn.prior import prior_features
from glf.nn.weights import save_backbone
from glf.result import read_result, update_result
from glf.runfiles import LAST
from glf.train.callbacks import RunLog
from glf.train.run import pretrain
from machine import files_up_to, on_a_small_disk

LIMIT = 50_000  # bytes of a file


def write_checkpoint(folder: Path) -> None:
    save_checkpoint({"x": torch.zeros(100, 1000), "y": [torch.zeros(10)] * 50}, folder / "a.ckpt")


def write_backbone(folder: Path) -> None:
    save_backbone(Backbone("small_resnet", channels=1, image_size=28), folder / "backbone.safetensors")


def write_result(folder: Path) -> None:
    update_result(folder, numbers=list(range(LIMIT)))


def write_features(folder: Path) -> None:
    extract(nn.Flatten(), load_images("fashion-mini", "test").select(np.arange(40)), cache=folder)


WRITERS = {
    "checkpoint": (write_checkpoint, "continue with --resume"),
    "backbone": (write_backbone, "free some space there"),
    "result": (write_result, "free some space there"),
    "features": (write_features, "free some space there"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_was_there_stays_and_nothing_half_written_is_left(name: str, tmp_path: Path) -> None:
    write, advice = WRITERS[name]
    (tmp_path / "a.ckpt").write_bytes(b"the one before")
    (tmp_path / "result.json").write_text('{"schema": 2}')
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with files_up_to(LIMIT), pytest.raises(OSError, match=r"could not be written \(File too large\)") as error:
        write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert advice in str(error.value)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)
    write(tmp_path)  # with room again


def test_the_reduced_prior(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    with files_up_to(LIMIT), pytest.raises(OSError, match=r"prior-\w+\.npy could not be written \(File too large\)"):
        _prior(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []
    assert _prior(tmp_path).shape == (300, 64)


def _prior(tmp_path: Path) -> np.ndarray:
    """Rows of one byte each go in, and of four come out."""
    few = load_images("fashion-mini", "test").select(np.arange(300))
    np.save(tmp_path / "rows.npy", few.pixels.reshape(300, -1)[:, 300:400])
    return prior_features(PretrainConfig(prior=f"file:{tmp_path / 'rows.npy'}"), few, cache=tmp_path / "cache")


@pytest.mark.parametrize("store", ["pack", "auto"])
def test_the_packed_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setenv("GLF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    for i, pixels in enumerate(load_images("fashion-mini", "test").pixels[:100, :, :, 0]):
        Image.fromarray(pixels).save(tmp_path / "set" / f"{i}.png")
    with (
        files_up_to(LIMIT),
        pytest.raises(OSError, match=r"could not be written \(File too large\): free some space") as error,
    ):
        load_images(str(tmp_path / "set"), store=store)  # type: ignore[arg-type]
    assert all(words in str(error.value) for words in ("GLF_CACHE", "--store decode", str(tmp_path / "cache")))
    assert list((tmp_path / "cache" / "images").iterdir()) == []
    with files_up_to(LIMIT):
        assert len(load_images(str(tmp_path / "set"), store="decode")) == 100
    assert len(load_images(str(tmp_path / "set"), store=store)) == 100  # type: ignore[arg-type]


def test_the_log_names_itself(tmp_path: Path, console: Console) -> None:
    log = RunLog(console)
    log("a line")
    log.open(tmp_path / "train.log")
    assert "a line" in (tmp_path / "train.log").read_text()
    with files_up_to(60), pytest.raises(OSError, match=r"train\.log could not be written .* continue with --resume"):
        log("another line " * 10)


class Fills(L.Callback):
    """From the second epoch on, files cannot be as large as a checkpoint is."""

    def __init__(self) -> None:
        self.limit = files_up_to(1_000_000)

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.current_epoch == 1:
            self.limit.__enter__()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.limit.__exit__(None, None, None)


def test_a_run_ends_in_one_line_and_goes_on_when_there_is_room(
    small_run: Callable[..., Path], tmp_path: Path, console: Console
) -> None:
    config = PretrainConfig(max_images=160, batch_size=64, epochs=2, val_images=32, log_every=1, out=tmp_path / "full")
    with pytest.raises(OSError, match=r"checkpoint .*last\.ckpt could not be written \(File too large\)") as error:
        pretrain(config, console, callbacks=[Fills()])
    assert "\n" not in str(error.value)
    assert "intact: free some space there" in str(error.value)
    out = tmp_path / "full"
    assert load_checkpoint(out / LAST)["epoch"] == 0
    assert not [path for path in out.rglob(".*") if path.is_file()], "neither half a checkpoint nor a lock"
    small_run(out=out, resume=True, epochs=2)
    assert load_checkpoint(out / LAST)["epoch"] == 1
    assert read_result(out)["training"]["val/rank"] > 0


SMALL_DISK = """
import sys
from pathlib import Path
import numpy as np, torch
from glf.checkpoint import load_checkpoint, save_checkpoint
from glf.data.sources import load_images
from glf.nn.features import extract

disk = Path(sys.argv[1])
save_checkpoint({"n": 1}, disk / "a.ckpt")
for write in (
    lambda: save_checkpoint({"x": torch.randn(1000, 1000), "y": [torch.randn(1000)] * 9}, disk / "a.ckpt"),
    lambda: extract(torch.nn.Flatten(), load_images("fashion-mini"), cache=disk),
):
    try:
        write()
    except OSError as error:
        print(error)
print(load_checkpoint(disk / "a.ckpt")["n"], [path.name for path in disk.iterdir()])
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """torch's writer raises its own error there, and a memory map would end the process by a signal."""
    (tmp_path / "disk").mkdir()
    saved, extracted, left = on_a_small_disk(SMALL_DISK, tmp_path / "disk", "1m").splitlines()
    assert "a.ckpt could not be written (No space left on device); the previous one is intact" in saved
    assert " could not be written (No space left on device): free some space there" in extracted
    assert left == "1 ['a.ckpt']"
