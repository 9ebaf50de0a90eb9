"""A resumed run has the images that it began with."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from glf.config.training import PretrainConfig
from glf.train.run import pretrain
from photos import write_photos


def rewrite(data: str, first: int, brighter: int = 0) -> None:
    arrays = dict(np.load(data))
    for name in ("train_images", "train_labels"):
        arrays[name] = arrays[name][first:]
    arrays["train_images"][0, 0, 0] += np.uint8(brighter)
    np.savez(data, **arrays)


def test_a_resumed_run_has_the_images_that_it_began_with(few_images: str, tmp_path: Path, console: Console) -> None:
    config = PretrainConfig(
        data=few_images, batch_size=64, epochs=1, val_images=32, max_images=128, out=tmp_path / "run"
    )
    pretrain(config, console)
    again = PretrainConfig(out=tmp_path / "run", resume=True)
    pretrain(again, console)
    rewrite(few_images, 0, brighter=1)
    with pytest.raises(ValueError, match="1 of 160 compared images differ from those of the run: restore the data"):
        pretrain(again, console)
    rewrite(few_images, 1)  # as many to train on, by --max-images, and they are others
    with pytest.raises(ValueError, match=r"started with 160 images \(96 for training\), and now there are 159 \(96\)"):
        pretrain(again, console)


def test_copied_files_are_told_from_changed_ones(tmp_path: Path, console: Console) -> None:
    """A copy has other modification times, and the same pixels; another photo in the place of one is refused."""
    photos = write_photos(tmp_path / "photos", 40)
    config = PretrainConfig(
        data=str(photos), batch_size=16, epochs=1, image_size=32, auto=False, device="cpu", out=tmp_path / "run"
    )
    pretrain(config, console)
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
        os.utime(path, ns=(number, number))
    again = PretrainConfig(out=tmp_path / "run", resume=True)
    pretrain(again, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "copied or changed; the pixels of all images were compared and are the same" in printed
    shutil.copy(photos / "boot" / "000.jpg", photos / "coat" / "001.jpg")
    with pytest.raises(ValueError, match="1 of 40 compared images differ from those of the run"):
        pretrain(again, console)
