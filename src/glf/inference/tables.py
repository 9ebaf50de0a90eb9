"""Tables that embed, search and outliers write, each with a note that tells it from a file of the user's.

The note of ``found.csv`` is ``found.csv.glf.json``: the command, the model, the data, and a hash of the table. Only a
table with that hash is replaced; one that was edited or exchanged is the user's.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glf.files import atomic_write, check_output, regular_file, sidecar
from glf.result import write_file

HASH = "blake2b"  # key of the table's hash in its note


def check_table(path: Path, command: str) -> None:
    """Refuse to replace anything but an unchanged table of this command, before any work."""
    note = sidecar(path, "json")
    written = _read_note(note)
    check_output(note, lambda _: HASH in written)
    check_output(path, lambda file: written.get("command") == command and written.get(HASH) == _hash(file))


@contextmanager
def table_writer(path: Path, command: str, about: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a temporary path for the table; then write the note, and put the table in its place.

    The earlier table is deleted before the note changes: paths in a note are never those of other features.
    """
    with atomic_write(path) as partial:
        yield partial
        note = {"command": command, **about, HASH: _hash(partial)}
        regular_file(path).unlink(missing_ok=True)
        write_file(sidecar(path, "json"), json.dumps(note, indent=1, ensure_ascii=False) + "\n")


def write_csv(
    path: Path, command: str, about: Mapping[str, Any], header: Iterable[str], rows: Iterable[Iterable[object]]
) -> None:
    """Write a table as CSV."""
    with table_writer(path, command, about) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        table.writerows(rows)


def _read_note(path: Path) -> dict[str, Any]:
    try:
        note = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _hash(path: Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()
