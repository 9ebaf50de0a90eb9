"""Rows of a source's images that grow batch by batch in the cache, and go on where a killed process left them.

A folder holds the rows, appended, and a journal with a line for each batch, written after its rows are on the disk.
What the journal does not vouch for is cut off, so nothing partial is ever taken for whole.
"""

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import nn

from glf.data.decode import StoredSize, quiet
from glf.data.images import Skipped
from glf.data.photos import Photos
from glf.files import atomic_write, exclusive_lock, explain_full_disk
from glf.nn.features import encoding, fingerprint

ROWS, JOURNAL = "rows.f32", "journal.jsonl"
ADVICE = "make room there, or set GLF_CACHE to a folder on another disk; the same command goes on where it was"


class Encoder(NamedTuple):
    """What makes rows of images."""

    name: str
    module: nn.Module
    size: int | None  # of the images that it sees
    channels: int


class Embedded(NamedTuple):
    """Rows of all images that could be read."""

    paths: list[str]
    rows: np.ndarray  # float32 (image, feature), mapped
    shape: StoredSize  # that the images were brought to
    skipped: tuple[Skipped, ...]


@dataclass
class _Progress:
    """What a journal vouches for."""

    shape: StoredSize | None = None
    seen: int = 0  # images looked at
    rows: int = 0
    width: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)
    length: int = 0  # of the journal, in bytes


def embedded(
    encoder: Encoder,
    photos: Photos,
    *,
    cache: Path,
    device: torch.device | str = "cpu",
    batch_size: int = 128,
    say: Callable[[str], None] = lambda text: None,
) -> Embedded:
    """A row for every image; those that are in the cache already are read from there."""
    folder = cache / f"{photos.key}-{fingerprint(encoder.module, encoder.size)}"
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder / "rows"), explain_full_disk(folder, ADVICE):
        done = _progress(folder)
        if done.length == 0 or any(photos.has_come_back(row, why) for row, why in done.skipped):
            known = photos.shape()
            done = _begin(folder, known and _checked(known, encoder))
        if 0 < done.seen < len(photos):
            say(f"going on after {done.seen:,} of {len(photos):,} images")
        with encoding(encoder.module, size=encoder.size, device=device) as features_of, quiet():
            while done.seen < len(photos):
                other = _grow(folder, done, photos, features_of, batch_size)
                if other is not None:  # all rows are of images of one shape: begin anew
                    done = _begin(folder, _checked(other, encoder))
    if done.rows == 0:
        first = _named(photos, done.skipped)[0].line(": ")
        raise ValueError(f"none of the {len(photos)} images can be read, first {first}")
    assert done.shape is not None
    bad = {row for row, _ in done.skipped}
    return Embedded(
        [photos.path(row) for row in range(len(photos)) if row not in bad],
        np.memmap(folder / ROWS, dtype="<f4", mode="c", shape=(done.rows, done.width)),  # torch wants it writable
        done.shape,
        tuple(_named(photos, done.skipped)),
    )


def _grow(
    folder: Path,
    done: _Progress,
    photos: Photos,
    features_of: Callable[[np.ndarray], np.ndarray],
    batch_size: int,
) -> StoredSize | None:
    """Batch after batch until all images are seen, or until one has another shape, which is returned."""
    batch: list[np.ndarray] = []
    skipped: list[tuple[int, str]] = []
    bar = Progress(console=Console(stderr=True), transient=True)
    with (
        open(folder / ROWS, "ab") as rows,
        open(folder / JOURNAL, "ab") as journal,
        closing(photos.read(done.seen, done.shape)) as results,
        bar,
    ):
        rows.truncate(done.rows * done.width * 4)
        journal.truncate(done.length)
        task = bar.add_task("embedding", total=len(photos), completed=done.seen)
        for row, result in enumerate(results, start=done.seen):
            if isinstance(result, StoredSize):
                return result
            if isinstance(result, Skipped):
                skipped.append((row, result.why))
                _check_share(photos, done.skipped + skipped)
            else:
                batch.append(result)
            if len(batch) == batch_size or row + 1 == len(photos):
                if batch:
                    features = features_of(np.stack(batch))
                    rows.write(np.ascontiguousarray(features, dtype="<f4").data)
                    done.width = features.shape[1]
                done.rows, done.seen = done.rows + len(batch), row + 1
                done.skipped += skipped
                _sync(rows)
                journal.write(_line(seen=done.seen, rows=done.rows, width=done.width, skipped=skipped))
                _sync(journal)
                batch, skipped = [], []
                bar.update(task, completed=done.seen)
    return None


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _checked(shape: StoredSize, encoder: Encoder) -> StoredSize:
    """The shape with as many channels as the encoder takes; grey images fill them all."""
    if shape.channels > encoder.channels:
        raise ValueError(
            f"some images are in colour, and {encoder.name} was trained on grey ones: use a backbone for colour"
        )
    return shape._replace(channels=encoder.channels)


def _check_share(photos: Photos, skipped: list[tuple[int, str]]) -> None:
    """As for training: where more than half is bad, something else is wrong."""
    if 2 * len(skipped) > len(photos):
        some = "".join(f"\n  {one.line(': ')}" for one in _named(photos, skipped[:5]))
        raise ValueError(f"more than half of the {len(photos)} image files are bad:{some}\nlook at these files first")


def _named(photos: Photos, skipped: list[tuple[int, str]]) -> list[Skipped]:
    return [Skipped(photos.path(row), why) for row, why in skipped]


def _begin(folder: Path, shape: StoredSize | None) -> _Progress:
    """An empty journal: from here on the rows that are there count for nothing."""
    with atomic_write(folder / JOURNAL, ADVICE) as partial:
        partial.write_bytes(_line(shape=shape))
    return _progress(folder)


def _line(**values: object) -> bytes:
    return (json.dumps(values) + "\n").encode()


def _progress(folder: Path) -> _Progress:
    """What is whole: lines of the journal up to the first that is cut short, or that the rows do not bear out."""
    done = _Progress()
    if not (folder / JOURNAL).exists():
        return done
    have = (folder / ROWS).stat().st_size if (folder / ROWS).exists() else 0
    for line in (folder / JOURNAL).read_bytes().splitlines(keepends=True):
        try:
            values = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            values = None
        if values is None or values.get("rows", 0) * values.get("width", 0) * 4 > have:
            break
        if "shape" in values:
            done.shape = None if values["shape"] is None else StoredSize(*values["shape"])
        else:
            done.seen, done.rows, done.width = values["seen"], values["rows"], values["width"]
            done.skipped += [(int(row), str(why)) for row, why in values["skipped"]]
        done.length += len(line)
    return done
