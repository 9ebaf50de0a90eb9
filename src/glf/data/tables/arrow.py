"""Where the images of an Arrow file are: the position of each in the file, so that it is read like a member of a tar.

Only positions are taken from the file's memory map, and they are checked: a damaged file is an error of one line.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from glf.files import open_regular, printable

MAGIC = b"ARROW1"  # of the format with an index at its end; ``datasets`` writes the one without
END = b"\xff\xff\xff\xff\0\0\0\0"  # of the format without one


class Cells(NamedTuple):
    """The images of consecutive rows of a table."""

    starts: NDArray[np.int64]  # (row,), first byte in the file
    sizes: NDArray[np.int64]  # (row,), -1 where there are no bytes
    paths: list[str | None]  # of each row; where there are no bytes, the image is in that file


@contextmanager
def explain_bad_table(path: Path) -> Iterator[None]:
    """Turn whatever a damaged table makes pyarrow raise into a ValueError of one line."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the content
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} cannot be read as a table: {printable(why):.300}") from error


def arrow_schema(path: Path) -> pa.Schema:
    """Return the columns of an Arrow file."""
    with explain_bad_table(path), _mapped(path) as mapped:
        return _reader(mapped, path).schema


def arrow_values(path: Path, column: str) -> Iterator[list[Any]]:
    """Yield the values of one column, some rows at a time."""
    with explain_bad_table(path), _mapped(path) as mapped:
        for batch in _batches(mapped, path):
            values = batch.column(column)
            values.validate(full=True)
            yield values.to_pylist()


def arrow_cells(path: Path, column: str) -> Iterator[Cells]:
    """Yield where the images of a column are, some rows at a time."""
    with explain_bad_table(path), _mapped(path) as mapped:
        whole = mapped.read_buffer(mapped.size())
        mapped.seek(0)
        for batch in _batches(mapped, path):
            yield _cells(batch.column(column), whole)


def _cells(images: pa.Array, whole: pa.Buffer) -> Cells:
    images.validate()
    data, paths = images, None
    if pa.types.is_struct(images.type):
        names = [images.type.field(i).name for i in range(images.type.num_fields)]
        fields = dict(zip(names, images.flatten(), strict=True))
        data, paths = fields["bytes"], fields.get("path")
    elif not (pa.types.is_binary(images.type) or pa.types.is_large_binary(images.type)):
        data, paths = None, images
    found: list[str | None] = [None] * len(images)
    if paths is not None and (pa.types.is_string(paths.type) or pa.types.is_large_string(paths.type)):
        paths.validate(full=True)
        found = paths.to_pylist()
    if data is None:
        nothing = np.full(len(images), -1, np.int64)
        return Cells(nothing, nothing, found)
    return Cells(*_spans(data, whole), found)


def _spans(data: pa.Array, whole: pa.Buffer) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first byte in the file and size of each value."""
    count = len(data)
    _, offsets, values = data.buffers()
    valid = data.is_valid().to_numpy(zero_copy_only=False)
    if count == 0 or offsets is None or values is None or values.size == 0:
        return np.zeros(count, np.int64), np.where(valid, 0, -1)
    wide = pa.types.is_large_binary(data.type)
    ends = np.frombuffer(offsets, "<i8" if wide else "<i4", offset=data.offset * (8 if wide else 4), count=count + 1)
    ends = ends.astype(np.int64)
    if ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] > values.size:
        raise ValueError("the positions of its values are damaged")
    first = values.address - whole.address
    if not 0 <= first <= first + values.size <= whole.size:
        raise ValueError("its content is compressed: save it without compression")
    return first + ends[:-1], np.where(valid, np.diff(ends), -1)


@contextmanager
def _mapped(path: Path) -> Iterator[pa.MemoryMappedFile]:
    with open_regular(path) as file:  # refuses what a memory map would wait for
        if os.fstat(file.fileno()).st_size < len(END):
            raise ValueError("it is too short")
        is_stream = file.read(len(MAGIC)) != MAGIC
        file.seek(-len(END), os.SEEK_END)
        if is_stream and file.read() != END:
            raise ValueError("truncated: it has no end")
    with pa.memory_map(str(path)) as mapped:
        yield mapped


def _reader(mapped: pa.MemoryMappedFile, path: Path) -> Any:
    begins = mapped.read(len(MAGIC))
    mapped.seek(0)
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return (pa.ipc.open_file if begins == MAGIC else pa.ipc.open_stream)(mapped, options=options)


def _batches(mapped: pa.MemoryMappedFile, path: Path) -> Iterator[pa.RecordBatch]:
    reader = _reader(mapped, path)
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        yield from reader
