"""Which files a table consists of: a folder written by ``save_to_disk`` of ``datasets``, or Parquet and Arrow files.

This module needs no pyarrow, so that whatever has no tables is read without it.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glf.data.files import TEST_FOLDERS, has_images
from glf.files import read_regular

SUFFIXES = (".parquet", ".arrow")
DICT, STATE = "dataset_dict.json", "state.json"  # written by ``save_to_disk``: of several splits, of one
MAX_NOTE = 2**26  # bytes of such a file
_NAMES = "|".join(sorted(("train", *TEST_FOLDERS), key=len, reverse=True))
_SPLIT = re.compile(rf"(?:^|[^a-z])({_NAMES})(?:[^a-z]|$)")


class Table(NamedTuple):
    """A data set of tables: the files of each of its splits, and the columns that the user gave."""

    where: str  # as the user gave it, without options
    splits: dict[str, list[Path]]
    named: bool = True  # False for a single table without a name
    image: str | None = None
    label: str | None = None


def find_table(path: Path, options: Mapping[str, str] | None = None) -> Table | None:
    """Return the table at a path; None if there is none. Images in a folder win over tables next to them."""
    found = _find(path)
    if found is None or not options:
        return found
    return found._replace(image=options.get("image"), label=options.get("label"))


def _find(path: Path) -> Table | None:
    if not path.is_dir():
        return Table(str(path), {"train": [path]}, False) if path.suffix.lower() in SUFFIXES else None
    if (path / DICT).is_file():
        names = _note(path / DICT).get("splits")
        if not isinstance(names, list) or not names or not all(_is_plain(name) for name in names):
            raise ValueError(f"{path / DICT} names no splits: save the data set again (save_to_disk)")
        return Table(str(path), {name: _saved(path / name) for name in names})
    if (path / STATE).is_file():
        return Table(str(path), {"train": _saved(path)}, False)
    if has_images(path):
        return None
    splits = _by_name(path)
    if not splits:
        return None
    named = "" not in splits
    return Table(str(path), splits if named else {"train": splits[""]}, named)


def _saved(folder: Path) -> list[Path]:
    """The Arrow files of one split, as its note lists them."""
    if not (folder / STATE).is_file():
        raise ValueError(f"{folder} is no saved data set, because it has no {STATE}: save it again (save_to_disk)")
    note = _note(folder / STATE)
    listed = note.get("_data_files")
    names = [item.get("filename") if isinstance(item, dict) else None for item in listed or ()]
    if not names or not all(_is_plain(name) for name in names) or note.get("_indices_data_files"):
        raise ValueError(f"{folder / STATE} names no files of its folder: save the data set again (save_to_disk)")
    files = [folder / str(name) for name in names]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise ValueError(f"{missing} is missing, one of the {len(files)} files of {folder}: save the data set again")
    return files


def _by_name(folder: Path) -> dict[str, list[Path]]:
    """The tables below a folder, by the split in their names: train-00000-of-00002.parquet, test/0.parquet."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    splits: dict[str, list[Path]] = {}
    for file in files:
        inside = file.relative_to(folder).as_posix()
        if not any(part.startswith(".") for part in inside.split("/")):
            found = _SPLIT.search(inside.lower())
            splits.setdefault(found[1] if found else "", []).append(file)
    if "" in splits and len(splits) > 1:
        raise ValueError(
            f"{splits[''][0]} is in no split, and other tables in {folder} are in {', '.join(filter(None, splits))}:"
            " give the tables themselves, or move it away"
        )
    return splits


def _note(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(path, MAX_NOTE))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} cannot be read: expected names with values")
    return found


def _is_plain(name: object) -> bool:
    """Whether it is the name of something directly in a folder, which leads nowhere else."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and "/" not in name
        and "\\" not in name
        and "\0" not in name
    )
