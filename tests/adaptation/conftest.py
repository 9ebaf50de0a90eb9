"""A small pretrained encoder, and small adaptations of it."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from glf.adaptation.run import adapt
from glf.config.training import AdaptConfig, PretrainConfig
from glf.train.run import pretrain


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of glf pretrain, to be adapted: four stages, images of 16 px."""
    out = tmp_path_factory.mktemp("encoder") / "run"
    config = PretrainConfig(
        method="simclr", max_images=160, batch_size=32, epochs=2, val_images=32, image_size=16, device="cpu", out=out
    )
    pretrain(config, Console(file=StringIO()))
    return f"run:{out}"


def small(encoder: str, out: Path) -> AdaptConfig:
    """Six steps on 96 images; 24 are held out."""
    return AdaptConfig(
        encoder=encoder,
        method="simclr+lpm",
        max_images=120,
        val_images=24,
        batch_size=32,
        epochs=2,
        views=4,
        lr=1e-3,
        log_every=1,
        device="cpu",
        out=out,
    )


@pytest.fixture
def settings(encoder: str, tmp_path: Path) -> AdaptConfig:
    return small(encoder, tmp_path / "run")


@pytest.fixture(scope="session")
def whole(encoder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with these settings, to compare with; its cache is its own."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLF_CACHE", str(out.parent / "cache"))
        adapt(small(encoder, out), Console(file=StringIO()))
    return out


@pytest.fixture
def adapted(settings: AdaptConfig, console: Console) -> Callable[..., Path]:
    """Adapt the encoder; returns the run's directory."""

    def run(**changes: Any) -> Path:
        config = replace(settings, **changes)
        adapt(config, console)
        assert config.out is not None
        return config.out

    return run
