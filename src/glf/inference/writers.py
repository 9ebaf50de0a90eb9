"""Rows with the paths that they belong to, as a file: .npy, .csv or .parquet, whole or not at all."""

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glf.files import atomic_write
from glf.inference.common import write_csv
from glf.nn.features import write_features
from glf.result import write_file

BLOCK = 1024  # rows written at a time


class FeatureTable(NamedTuple):
    """What is written."""

    paths: list[str]
    rows: np.ndarray  # float32 (image, feature)
    points: np.ndarray | None  # float32 (image, 2), for a picture
    about: dict[str, str]  # by which model, of which images


def check_target(path: Path) -> None:
    """Whatever would keep the file from being written is said before hours of work, not after."""
    if path.suffix not in WRITERS:
        raise ValueError(f"--out {path} should end with one of {', '.join(WRITERS)}")
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder: give the name of a file in it")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ValueError(f"{path.name} needs pyarrow: pip install 'glf[parquet]', or choose .npy or .csv")
    with atomic_write(path.with_name(f".{path.name}.try")) as partial:  # a folder that cannot be made, or written to
        partial.touch()
    path.with_name(f".{path.name}.try").unlink()


def write_table(path: Path, table: FeatureTable) -> None:
    """The file of the kind that its ending names."""
    WRITERS[path.suffix](path, table)


def _npy(path: Path, table: FeatureTable) -> None:
    """The rows, and beside them a .json with the paths; that one first, so that rows never lack their paths."""
    path.unlink(missing_ok=True)
    content: dict[str, Any] = {**table.about, "paths": table.paths}
    if table.points is not None:
        content["map"] = table.points.tolist()
    write_file(path.with_suffix(".json"), json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    write_features((table.rows[part] for part in _parts(table)), len(table.rows), path)


def _csv(path: Path, table: FeatureTable) -> None:
    """Nine digits say exactly which float32 it is."""
    names = [*(f"f{i}" for i in range(table.rows.shape[1])), *_map_names(table)]

    def lines() -> Iterator[list[str]]:
        for part in _parts(table):
            for path_, row in zip(table.paths[part], _with_points(table, part), strict=True):
                yield [path_, *(f"{value:.9g}" for value in row.tolist())]

    write_csv(path, ["path", *names], lines())


def _parquet(path: Path, table: FeatureTable) -> None:
    """Columns path, embedding (a list of fixed length), and with a map map_x and map_y."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = table.rows.shape[1]
    columns = [("path", pa.string()), ("embedding", pa.list_(pa.float32(), width))]
    columns += [(name, pa.float32()) for name in _map_names(table)]
    with atomic_write(path) as partial, pq.ParquetWriter(partial, pa.schema(columns, metadata=table.about)) as writer:
        for part in _parts(table):
            block = _with_points(table, part)
            flat = pa.array(np.ascontiguousarray(block[:, :width]).reshape(-1))
            arrays = [pa.array(table.paths[part]), pa.FixedSizeListArray.from_arrays(flat, width)]
            arrays += [pa.array(np.ascontiguousarray(column)) for column in block[:, width:].T]
            writer.write_batch(pa.record_batch(arrays, schema=writer.schema))


def _parts(table: FeatureTable) -> Iterator[slice]:
    return (slice(at, at + BLOCK) for at in range(0, len(table.rows), BLOCK))


def _with_points(table: FeatureTable, part: slice) -> np.ndarray:
    rows = np.asarray(table.rows[part])
    return rows if table.points is None else np.hstack([rows, table.points[part]])


def _map_names(table: FeatureTable) -> list[str]:
    return [] if table.points is None else ["map_x", "map_y"]


WRITERS: dict[str, Callable[[Path, FeatureTable], None]] = {".npy": _npy, ".csv": _csv, ".parquet": _parquet}
