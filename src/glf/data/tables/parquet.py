"""Parquet files. Their images are compressed in blocks, so they are written once as an Arrow file into the cache.

From that file single images are read, in any order and by any number of workers.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from glf.data.image_cache import cache_root
from glf.data.tables.arrow import explain_bad_table
from glf.files import atomic_write, exclusive_lock, open_regular
from glf.ui import SlowWork

VERSION = 1  # raise it whenever the same Parquet file would be written differently
ROWS = 32  # read at a time: images may be large
LABEL_ROWS = 2**16
BLOCK = 2**16  # bytes at the end, which describe the file, and some in between, enter the key
SAMPLED = 16
MAX_TEXT, MAX_ITEMS = 2**26, 2**22  # bytes of a name or a note, and entries of a list, in a file's description
DISK_ADVICE = "free some space there, or set GLF_CACHE to a folder on another disk"


def parquet_schema(path: Path) -> pa.Schema:
    """Return the columns of a Parquet file."""
    with explain_bad_table(path), _opened(path) as file:
        return file.schema_arrow


def parquet_values(path: Path, column: str) -> Iterator[list[Any]]:
    """Yield the values of one column, some rows at a time."""
    with explain_bad_table(path), _opened(path) as file:
        for batch in file.iter_batches(LABEL_ROWS, columns=[column], use_threads=False):
            values = batch.column(column)
            values.validate(full=True)
            yield values.to_pylist()


def parquet_images(path: Path, column: str) -> Path:
    """Return the Arrow file of a column of images; it is written if it is not in the cache."""
    status = path.stat()
    target = cache_root() / "tables" / f"{_fingerprint(path, status, column)}.arrow"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(target):
            if not target.exists():
                with atomic_write(target, DISK_ADVICE) as partial:
                    _write(path, column, partial)
                    os.utime(partial, ns=(status.st_atime_ns, status.st_mtime_ns))  # so that it stands for the same
    return target


def _write(path: Path, column: str, out: Path) -> None:
    """Write one column; ValueError if any of it cannot be read, because nobody knows how much is missing."""
    rows, slow = 0, SlowWork(f"reading {path}", "row")
    with explain_bad_table(path), _opened(path) as file:
        schema = pa.schema([file.schema_arrow.field(column)])
        with pa.OSFile(str(out), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
                batch.validate(full=True)
                writer.write_batch(pa.record_batch([batch.column(column)], schema=schema))
                rows += len(batch)
                slow.advance(len(batch))
        if rows != file.metadata.num_rows:
            raise ValueError(f"it has {rows:,} rows, but should have {file.metadata.num_rows:,}")


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file as a memory map: a block that claims to be larger than the file takes no memory."""
    open_regular(path).close()  # refuses what the memory map would wait for
    with (
        pa.memory_map(str(path)) as mapped,
        pq.ParquetFile(
            mapped,
            pre_buffer=False,
            thrift_string_size_limit=MAX_TEXT,
            thrift_container_size_limit=MAX_ITEMS,
            page_checksum_verification=True,
        ) as file,
    ):
        yield file


def _fingerprint(path: Path, status: os.stat_result, column: str) -> str:
    """16 hex digits of the file and of the column: its place, size, time, end, and some of its content."""
    about = (VERSION, str(path.resolve()), status.st_size, status.st_mtime_ns, column)
    digest = hashlib.blake2b(repr(about).encode("utf-8", "surrogatepass"), digest_size=8)
    with open_regular(path) as file:
        for at in (*range(0, status.st_size, -(-max(1, status.st_size) // SAMPLED)), max(0, status.st_size - BLOCK)):
            file.seek(at)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()
