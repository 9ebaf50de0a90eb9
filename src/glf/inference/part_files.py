"""The Parquet file of a part, and a folder of such files read as one table.

The note of a part is JSON under ``glf`` in the file's metadata: which part it is, what it was made with, and what was
skipped. Parts of one table agree in ``SHARED``.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from glf.config.fits import wrong_key
from glf.config.inference import Part
from glf.data.source import Skipped
from glf.inference.destination import Destination, open_destination

SCHEMA = 1
NOTE = b"glf"  # key in the metadata
ROWS = 8192  # of a row group, at least
SHARED = ("parts", "encoder", "listing", "batch_size", "schema")
_NAME = re.compile(r"part-(\d+)-of-(\d+)\.parquet")


class PartNote(TypedDict):
    """What a part was made of. ``data`` and ``model`` are for people: paths may differ between machines."""

    schema: int
    part: int
    parts: int
    model: str
    encoder: str  # fingerprint of the weights and of the preprocessing
    data: str
    listing: str  # fingerprint of the names and sizes of all images
    batch_size: int
    rows: int
    skipped: list[tuple[str, str]]  # path and reason


class Rows(NamedTuple):
    """Some rows of the table."""

    paths: list[str]
    labels: list[int | None] | None  # None if the table has no such column
    features: np.ndarray  # (image, feature)


def part_name(part: Part) -> str:
    """The name of a part's file. Sorted by name, they are in order.

    >>> part_name(Part(17, 1000))
    'part-0017-of-1000.parquet'
    """
    return f"part-{part.number:0{len(str(part.of))}}-of-{part.of}.parquet"


def write_part(file: Any, width: int, labelled: bool, rows: Iterator[Rows], note: Callable[[], PartNote]) -> int:
    """Write the rows as they come, and the note when there are no more; return how many there were."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [("path", pa.string()), ("embedding", pa.list_(pa.float32(), width))]
    schema = pa.schema([columns[0], ("label", pa.int64()), columns[1]] if labelled else columns)
    count, waiting = 0, list[Any]()
    with pq.ParquetWriter(file, schema, write_page_checksum=True) as writer:

        def flush() -> None:
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting.clear()

        for some in rows:
            flat = pa.array(np.ascontiguousarray(some.features, np.float32).reshape(-1))
            arrays = [pa.array(some.paths, pa.string()), pa.FixedSizeListArray.from_arrays(flat, width)]
            if labelled:
                arrays.insert(1, pa.array(some.labels, pa.int64()))
            waiting.append(pa.record_batch(arrays, schema=schema))
            count += len(some.paths)
            if sum(len(batch) for batch in waiting) >= ROWS:
                flush()
        flush()
        content: dict[str, Any] = {**note(), "rows": count}
        writer.add_key_value_metadata({NOTE.decode(): json.dumps(content)})
    return count


def read_note(folder: Destination, name: str) -> PartNote:
    """Return the note of a part; ValueError if the file is not a whole one, or is something else."""
    import pyarrow.parquet as pq

    try:
        with folder.open(name) as file:
            found = pq.read_metadata(file)
        content = json.loads((found.metadata or {})[NOTE])
        wrong = wrong_key(content, PartNote) or ("" if content["rows"] == found.num_rows else "rows are missing")
        if wrong:
            raise ValueError(wrong)
    except Exception as error:  # a damaged file makes pyarrow raise almost anything
        why = "it has no note of glf" if isinstance(error, KeyError) else (str(error).splitlines() or [repr(error)])[0]
        raise ValueError(
            f"{folder.place(name)} is not a whole part ({why}): move it away, and run that part again"
        ) from error
    note: PartNote = content
    return note


def check_folder(folder: Destination, part: Part) -> PartNote | None:
    """Return the note of this part if it is there; ValueError for a folder with parts of another number of parts."""
    for name in folder.names():
        given = _NAME.fullmatch(name)
        if given and int(given[2]) != part.of:
            raise ValueError(f"{folder.place('')} has one of {int(given[2]):,} parts ({name}): choose another --out")
    return read_note(folder, part_name(part)) if part_name(part) in folder.names() else None


def differences(one: PartNote, other: PartNote) -> str:
    """In which entries two parts disagree that should be of one table."""
    return ", ".join(name for name in SHARED if one.get(name) != other.get(name))


def read_parts(folder: str | Path) -> Any:
    """Return the parts that ``glf embed --part`` wrote to a folder or URL, in order, as a ``pyarrow.dataset.Dataset``.

    ValueError if a part is missing or damaged, or if they do not belong together: another encoder, other images or
    other settings. ``.to_table()`` reads all rows, ``.to_batches()`` some at a time.
    """
    place = open_destination(folder)
    notes = {name: read_note(place, name) for name in place.names() if _NAME.fullmatch(name)}
    if not notes:
        raise ValueError(f"no parts in {folder}: glf embed RUN DATA --part 1/10 --out {folder} writes one")
    (first, expected), *others = notes.items()
    for name, note in others:
        if differing := differences(expected, note):
            raise ValueError(f"{name} and {first} in {folder} are of different tables ({differing} differ)")
    missing = sorted(set(range(1, expected["parts"] + 1)) - {note["part"] for note in notes.values()})
    if missing:
        some = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise ValueError(f"{len(missing):,} of {expected['parts']:,} parts are missing in {folder}: {some}")
    import pyarrow.dataset

    return pyarrow.dataset.dataset([place.path(name) for name in notes], format="parquet", filesystem=place.system)


def as_skipped(skipped: list[Skipped]) -> list[tuple[str, str]]:
    """The entry of a note, in text that JSON can hold."""
    return [(one.name.encode("utf-8", "backslashreplace").decode(), one.why) for one in skipped]
