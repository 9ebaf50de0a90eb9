"""Damaged tables: one line each, never a shorter data set, a crash or memory for what is not there."""

import random
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from glf.data.sources import find_source
from glf.data.tables.parquet import parquet_images
from machine import on_a_small_disk, peak

from .conftest import Write


def test_parquet_without_pyarrow_names_the_extra(parquet: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from glf.data import sources

    path = parquet()
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"data.parquet needs pyarrow: pip install 'glf\[parquet\]'"):
        find_source(str(path), "train")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file(parquet: Write, share: float) -> None:
    path = parquet()
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ValueError, match=r"data\.parquet cannot be read as a table"):
        find_source(str(path), "train")


def test_a_truncated_arrow_file(saved: datasets.Dataset, tmp_path: Path) -> None:
    saved.save_to_disk(tmp_path / "saved")
    path = next((tmp_path / "saved").glob("*.arrow"))
    whole = path.read_bytes()
    for end in (0, 5, len(whole) // 2, len(whole) - 8):  # the last one is a whole number of batches
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="cannot be read as a table"):
            find_source(str(tmp_path / "saved"), "train")


def test_a_compressed_arrow_file_says_what_to_do(tmp_path: Path, files: list[bytes]) -> None:
    table = pa.table({"image": files})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(ValueError, match="its content is compressed: save it without compression"):
        find_source(str(tmp_path / "a.arrow"), "train")
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as writer:  # the format with an index at its end
        writer.write_table(table)
    assert find_source(str(tmp_path / "b.arrow"), "train").read(3) == files[3]


@pytest.mark.parametrize(("at", "value"), [(0, -1), (5, 2**31 - 1), (6, 0), (12, 2**31 - 1)])
def test_positions_outside_the_file_are_never_followed(
    saved: datasets.Dataset, tmp_path: Path, files: list[bytes], at: int, value: int
) -> None:
    saved.save_to_disk(tmp_path / "saved")
    path = next((tmp_path / "saved").glob("*.arrow"))
    whole = path.read_bytes()
    positions = np.cumsum([0, *map(len, files)]).astype("<i4")
    assert whole.count(positions.tobytes()) == 1
    damaged = positions.copy()
    damaged[at] = value
    path.write_bytes(whole.replace(positions.tobytes(), damaged.tobytes()))
    with pytest.raises(ValueError, match=r"cannot be read as a table"):
        find_source(str(path), "train")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_flipped_bytes_give_images_or_one_line_and_take_no_memory(
    kind: str, parquet: Write, saved: datasets.Dataset, tmp_path: Path
) -> None:
    path = parquet(compression="gzip")
    if kind == "arrow":
        saved.save_to_disk(tmp_path / "saved")
        path = next((tmp_path / "saved").glob("*.arrow"))
    whole, draw, refused = path.read_bytes(), random.Random(5), 0
    with peak() as memory:
        for _ in range(80):
            damaged = bytearray(whole)
            for _ in range(draw.choice((1, 2, 20))):
                at = draw.choice(
                    (draw.randrange(len(whole)), len(whole) - 1 - draw.randrange(900), draw.randrange(600))
                )
                damaged[at] = draw.choice((0, 127, 255, draw.randrange(256)))
            path.write_bytes(damaged)
            try:
                source = find_source(str(path), "train")
                for i in range(len(source)):
                    source.read(i)
            except ValueError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017 (it need not be raised)
    assert 8 < refused < 80
    assert memory.bytes < 300e6


def test_a_block_that_claims_gigabytes(parquet: Write) -> None:
    """The sizes in the header of a block are 32-bit numbers of variable length: every place is tried."""
    path = parquet(compression="none", use_dictionary=False)
    whole = path.read_bytes()
    with peak() as memory:
        for at in range(4, 40):
            path.write_bytes(whole[:at] + b"\xfe\xff\xff\xff\x0f" + whole[at + 5 :])  # 2,147,483,647
            try:
                find_source(str(path), "train")
            except ValueError as error:
                assert "cannot be read as a table" in str(error)  # noqa: PT017 (it need not be raised)
    assert memory.bytes < 300e6


def test_the_images_are_written_once(parquet: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet()
    first = parquet_images(path, "image")
    stamp = first.stat().st_ino
    assert parquet_images(path, "image").stat().st_ino == stamp
    parquet()
    assert parquet_images(path, "image") != first  # another time of modification


def test_rows_that_are_missing_are_an_error(parquet: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet()
    whole = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *args, **options: list(whole(*args, **options))[:-1])
    with pytest.raises(ValueError, match="it has 0 rows, but should have 12"):
        parquet_images(path, "image")


def test_a_full_disk_is_one_line_and_leaves_nothing(parquet: Write, tmp_path: Path) -> None:
    images = [bytes([i]) * 100_000 for i in range(12)]
    path = parquet(columns={"image": images})
    code = f"""
import os, sys
from pathlib import Path
os.environ["GLF_CACHE"] = sys.argv[1]
from glf.data.tables.parquet import parquet_images
try:
    parquet_images(Path({str(path)!r}), "image")
except OSError as error:
    print(error)
print(sorted(p.suffix for p in (Path(sys.argv[1]) / "tables").iterdir() if not p.name.endswith(".lock")))
"""
    (tmp_path / "disk").mkdir()
    said = on_a_small_disk(code, tmp_path / "disk", "500k")
    assert "could not be written" in said
    assert "GLF_CACHE" in said
    assert said.endswith("[]\n")
