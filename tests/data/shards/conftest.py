"""Shards of real images."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from glf.config.inference import ShardConfig
from glf.data.sources import load_images
from glf.sharding import shard
from shard_streams import COUNT, PER_SHARD


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with labels and prior features. Read-only: tests that change shards use ``copied``."""
    place = tmp_path_factory.mktemp("stream")
    source = load_images("fashion-mini")
    np.savez(place / "few.npz", train_images=source.pixels[:COUNT], train_labels=source.targets[:COUNT])
    settings = ShardConfig(
        data=str(place / "few.npz"), out=place / "out", per_shard=PER_SHARD, prior="pixels", prior_width=6
    )
    shard(settings, Console(file=io.StringIO()))
    return place / "out"


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy of the shards, to be damaged."""
    out = tmp_path / "copied"
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    return out
