"""Write features with the paths of their images as .npy, .csv or .parquet, atomically.

The note of an .npy file, ``embeddings.npy.glf.json``, has the paths; ``*.glf.skipped.txt`` lists the skipped files.
"""

import json
import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glf.files import check_output, first_line, sidecar
from glf.inference.tables import check_table, table_writer, write_csv
from glf.nn.feature_cache import write_npy

COMMAND = "embed"
BLOCK, BLOCK_BYTES = 1024, 2**26  # images written at a time, and bytes of them


class FeatureTable(NamedTuple):
    """The content of the file."""

    paths: list[str]
    features: np.ndarray  # float32 (image, feature), or maps: float16 (image, row, column, feature)
    points: np.ndarray | None  # float32 (image, 2), for a picture
    about: dict[str, str]  # the model and the data

    def blocks(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yield the paths of some images with their features, and their points if there are any."""
        step = max(1, min(BLOCK, BLOCK_BYTES // self.features[0].nbytes))
        for at in range(0, len(self.paths), step):
            part = slice(at, at + step)
            features = np.asarray(self.features[part])
            yield self.paths[part], features if self.points is None else np.hstack([features, self.points[part]])

    @property
    def point_names(self) -> list[str]:
        return [] if self.points is None else ["map_x", "map_y"]


def check_target(path: Path, features: str = "pooled") -> None:
    """Raise an error for a file that cannot be written: before hours of work, not after."""
    if path.suffix not in WRITERS:
        raise ValueError(f"--out {path} should end with one of {', '.join(WRITERS)}")
    if path.suffix == ".csv" and features == "map":
        raise ValueError(f"--features map gives too many numbers for {path.name}: choose .npy or .parquet")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError(f"{path.name} needs pyarrow: pip install 'glf[parquet]', or choose .npy or .csv")
    check_table(path, COMMAND)
    check_output(skipped_file(path), lambda file: "\t" in first_line(file))


def skipped_file(path: Path) -> Path:
    """The list of files that were skipped."""
    return sidecar(path, "skipped.txt")


def write_table(path: Path, table: FeatureTable) -> None:
    """Write the file in the format of its suffix."""
    WRITERS[path.suffix](path, table)


def _npy(path: Path, table: FeatureTable) -> None:
    """Write the features; the paths are in the note."""
    content: dict[str, Any] = {**table.about, "paths": table.paths}
    if table.points is not None:
        content["map"] = table.points.tolist()
    width = table.features.shape[1]
    with table_writer(path, COMMAND, content) as partial:
        write_npy((block[:, :width] for _, block in table.blocks()), len(table.paths), partial)


def _csv(path: Path, table: FeatureTable) -> None:
    """Write nine digits of each value, which identify a float32 exactly."""
    names = ["path", *(f"f{i}" for i in range(table.features.shape[1])), *table.point_names]
    rows = (
        [image, *(f"{value:.9g}" for value in values)]
        for paths, block in table.blocks()
        for image, values in zip(paths, block.tolist(), strict=True)
    )
    write_csv(path, COMMAND, table.about, names, rows)


def _parquet(path: Path, table: FeatureTable) -> None:
    """Write columns path, embedding (a list of fixed length) and, with a map, map_x and map_y.

    Feature maps are a column feature_map instead, of float16; the metadata have their shape: rows, columns, features.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    _, *shape = table.features.shape
    width, maps = math.prod(shape), len(shape) > 1
    name, number = ("feature_map", pa.float16()) if maps else ("embedding", pa.float32())
    columns = [("path", pa.string()), (name, pa.list_(number, width))]
    columns += [(name, pa.float32()) for name in table.point_names]
    schema = pa.schema(columns, metadata=table.about | ({"shape": json.dumps(shape)} if maps else {}))
    with table_writer(path, COMMAND, table.about) as partial, pq.ParquetWriter(partial, schema) as writer:
        for paths, block in table.blocks():
            rows = block.reshape(len(block), -1)
            flat = pa.array(np.ascontiguousarray(rows[:, :width]).reshape(-1))
            arrays = [pa.array(paths), pa.FixedSizeListArray.from_arrays(flat, width)]
            arrays += [pa.array(np.ascontiguousarray(column)) for column in rows[:, width:].T]
            writer.write_batch(pa.record_batch(arrays, schema=writer.schema))


WRITERS: dict[str, Callable[[Path, FeatureTable], None]] = {".npy": _npy, ".csv": _csv, ".parquet": _parquet}
