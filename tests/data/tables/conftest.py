"""Tables of real images, written by pyarrow and by ``datasets``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from glf.data.arrays import as_png

NAMES = ["boot", "coat", "dress"]
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


@pytest.fixture(scope="session")
def files(fashion: NDArray[np.uint8]) -> list[bytes]:
    """Twelve image files."""
    return [as_png(pixels[:, :, None]) for pixels in fashion[:12]]


@pytest.fixture
def parquet(tmp_path: Path, files: list[bytes]) -> Write:
    """Write a Parquet file of these columns; by default, the twelve images with their labels."""

    def write(name: str = "data.parquet", columns: dict[str, Any] | None = None, **options: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = columns or {"image": files, "label": [i // 4 for i in range(12)]}
        pq.write_table(pa.table(columns), path, row_group_size=5, **options)
        return path

    return write


@pytest.fixture
def saved(files: list[bytes]) -> datasets.Dataset:
    """The twelve images as a data set of Hugging Face's library, with names of classes."""
    features = datasets.Features({"img": datasets.Image(), "kind": datasets.ClassLabel(names=NAMES)})
    images = [{"bytes": data, "path": None} for data in files]
    return datasets.Dataset.from_dict({"img": images, "kind": [i // 4 for i in range(12)]}, features=features)
