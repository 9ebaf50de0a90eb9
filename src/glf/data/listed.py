"""Image files that a .csv lists by their paths, with or without labels."""

import csv
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glf.data.entries import CompactEntries, Entry
from glf.data.files import Files
from glf.data.source import MAX_CLASSES, UNREAD, MissingSplit, Skipped
from glf.files import atomic_write, open_regular, printable

PATH, LABEL = "path", "label"  # the columns; any others are ignored


@dataclass(frozen=True, kw_only=True, eq=False)
class Listed(Files):
    """The files that a .csv names, in its order; a file may be named twice. They are one training split."""

    path_of_list: Path

    def __str__(self) -> str:
        return str(self.path_of_list)


def read_listed(path: Path, split: str) -> Files:
    """Read the column ``path``, relative to the folder of the .csv, and the column ``label`` if there is one."""
    if split not in ("train", "all"):
        raise MissingSplit(f"{path} has no split {split!r}, it has train")
    entries, labels, skipped = list[Entry](), list[str](), list[Skipped]()
    folder = path.absolute().parent
    for name, label in _rows(path):
        try:
            status = os.stat(folder / name)
        except (OSError, ValueError) as error:
            skipped.append(Skipped(name, UNREAD + (getattr(error, "strerror", None) or str(error))))
            continue
        if not stat.S_ISREG(status.st_mode):
            skipped.append(Skipped(name, "not a file"))
            continue
        entries.append(Entry(name, status.st_size, status.st_mtime_ns))
        labels.append(label)
    if not entries:
        reason = f", first {skipped[0].line(': ')}" if skipped else ""
        raise ValueError(
            f"{path} lists {len(skipped)} files, and none of them is there{reason}: paths are relative to it"
        )
    unlabelled = np.full(len(entries), -1, np.int64)
    files = Listed(
        root=folder,
        entries=CompactEntries(entries),
        targets=unlabelled,
        classes=(),
        skipped=tuple(skipped),
        path_of_list=path,
    )
    classes = sorted(set(labels))
    if "" in classes or len(classes) < 2:
        return files
    if len(classes) > MAX_CLASSES:
        raise ValueError(f"{path} has {len(classes):,} labels, but at most {MAX_CLASSES:,} classes: drop the column")
    return files.with_labels(labels, classes)


def write_list(path: Path, names: Sequence[str | os.PathLike[str]]) -> None:
    """Write a .csv of paths, which are made absolute."""
    with (
        atomic_write(path) as partial,
        open(partial, "w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        table = csv.writer(file)
        table.writerow([PATH])
        table.writerows([os.path.abspath(os.fspath(name))] for name in names)


def _rows(path: Path) -> Iterable[tuple[str, str]]:
    """Yield the path and the label of each row; the label is empty if there is none."""
    open_regular(path).close()  # refuses what has no end
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            table = csv.DictReader(file)
            if PATH not in (table.fieldnames or ()):
                found = printable(", ".join((table.fieldnames or [])[:5]))
                raise ValueError(f"its first line has no column {PATH!r}, but {found or 'nothing'}")
            for row in table:
                if row[PATH]:
                    yield row[PATH], row.get(LABEL) or ""
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} is not a .csv of paths: {error}") from error
