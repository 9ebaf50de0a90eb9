"""A few real images as a file, so that a run takes seconds."""

from pathlib import Path

import numpy as np
import pytest

from glf.data import sources


@pytest.fixture
def images(tmp_path: Path) -> str:
    path = tmp_path / "few.npz"
    arrays = {}
    for split, count in (("train", 160), ("test", 60)):
        source = sources.load("fashion-mini", split)
        arrays |= {f"{split}_images": source.pixels[:count], f"{split}_labels": source.targets[:count]}
    np.savez(path, **arrays)
    return str(path)
