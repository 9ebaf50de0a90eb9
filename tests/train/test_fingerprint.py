"""A resumed run has the images that it began with."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from glf.config.training import PretrainConfig
from glf.train.run import pretrain


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
    assert "the files differ from those at the start of the run" not in console.file.getvalue()  # type: ignore[attr-defined]
    rewrite(few_images, 0, brighter=1)
    pretrain(again, console)
    assert "the files differ from those at the start of the run" in console.file.getvalue()  # type: ignore[attr-defined]
    rewrite(few_images, 1)  # as many to train on, by --max-images, and they are others
    with pytest.raises(ValueError, match=r"started with 160 images \(96 for training\), and now there are 159 \(96\)"):
        pretrain(again, console)
