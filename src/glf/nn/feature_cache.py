"""Cached features, which grow batch by batch and survive a kill.

Each batch is appended to ``features.f32`` (or ``.f16``), and once it is on disk a line is appended to
``journal.jsonl``. After a kill, extraction resumes after the last batch in the journal; anything beyond it is cut off.
"""

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from glf import ui
from glf.data.source import Skipped
from glf.files import atomic_write, exclusive_lock, explain_full_disk

JOURNAL = "journal.jsonl"
ADVICE = "free some space there, or set GLF_CACHE to another disk; the same command continues where it stopped"


@dataclass
class FeatureCache:
    """Cached features of a sequence of images; the first ``seen`` images are done or skipped."""

    folder: Path
    seen: int = 0
    count: int = 0  # of features: ``seen`` without the skipped images
    width: int = 0
    skipped: list[tuple[int, str]] = field(default_factory=list)  # index and reason
    length: int = 0  # of the journal, in bytes
    bits: Literal[16, 32] = 32  # of a number

    @property
    def file(self) -> Path:
        return self.folder / f"features.f{self.bits}"

    @property
    def dtype(self) -> str:
        return f"<f{self.bits // 8}"

    @classmethod
    def open(cls, folder: Path, bits: Literal[16, 32] = 32) -> "FeatureCache":
        """Read the journal up to the first line that is incomplete or claims more features than there are."""
        cached = cls(folder, bits=bits)
        if not (folder / JOURNAL).exists():
            return cached
        size = cached.file.stat().st_size if cached.file.exists() else 0
        for line in (folder / JOURNAL).read_bytes().splitlines(keepends=True):
            try:
                values = json.loads(line)
                if not line.endswith(b"\n") or values.get("count", 0) * values.get("width", 0) * bits // 8 > size:
                    break
                skipped = [(int(i), str(why)) for i, why in values["skipped"]]
                cached.seen, cached.count, cached.width = (int(values[n]) for n in ("seen", "count", "width"))
                cached.skipped += skipped
            except (ValueError, TypeError, KeyError, AttributeError):  # not a journal, or damaged
                break
            cached.length += len(line)
        return cached

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Lock the folder, and read the journal again, because another process may have extended it.

        If an error occurs before the first batch is done, the folder is removed.
        """
        with exclusive_lock(self.folder), explain_full_disk(self.folder, ADVICE):
            self.folder.mkdir(parents=True, exist_ok=True)
            vars(self).update(vars(self.open(self.folder, self.bits)))
            try:
                yield
            finally:
                if self.seen == 0:
                    shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self) -> None:
        """Begin an empty journal, which discards all features."""
        with atomic_write(self.folder / JOURNAL, ADVICE) as partial:
            partial.touch()
        vars(self).update(vars(self.open(self.folder, self.bits)))

    def extend(
        self,
        images: Generator[np.ndarray | Skipped, None, None],
        total: int,
        features_of: Callable[[list[np.ndarray]], np.ndarray],
        batch_size: int,
        label: str,
    ) -> None:
        """Append features batch by batch. A batch is what can be decoded of ``batch_size`` images: like the batches of
        a part, so that the features are the same to the last bit."""
        batch, skipped = list[np.ndarray](), list[tuple[int, str]]()
        with (
            open(self.file, "ab") as features_file,
            open(self.folder / JOURNAL, "ab") as journal,
            closing(images),
            ui.progress() as bar,
        ):
            features_file.truncate(self.count * self.width * self.bits // 8)
            journal.truncate(self.length)
            task = bar.add_task(label, total=total, completed=self.seen)
            for i, image in enumerate(images, start=self.seen):
                if isinstance(image, Skipped):
                    skipped.append((i, image.why))
                else:
                    batch.append(image)
                if (i + 1) % batch_size == 0 or i + 1 == total:
                    if batch:
                        features = features_of(batch)
                        self.width = features.shape[1]
                        _append(features_file, np.ascontiguousarray(features, dtype=self.dtype).data)
                    self.count, self.seen, self.skipped = self.count + len(batch), i + 1, self.skipped + skipped
                    _append(journal, _line(seen=self.seen, count=self.count, width=self.width, skipped=skipped))
                    batch, skipped = [], []
                    bar.update(task, completed=self.seen)

    def features(self) -> np.ndarray:
        # Mapped copy-on-write, because torch refuses read-only arrays; nothing writes to it.
        return np.memmap(self.file, dtype=self.dtype, mode="c", shape=(self.count, self.width))


def _line(**values: object) -> bytes:
    return (json.dumps(values) + "\n").encode()


def _append(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write and wait until it is on disk."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def write_npy(batches: Iterable[np.ndarray], count: int, path: Path) -> None:
    """Write the features of ``count`` images to an .npy file, as they come: float16 if they are, else float32.

    Not through a memory map: on a full disk, writing to one kills the process without a message.
    """
    with open(path, "wb") as file:
        written = 0
        for features in batches:
            if written == 0:
                kind = "<f2" if features.dtype == np.float16 else "<f4"
                header = {"descr": kind, "fortran_order": False, "shape": (count, *features.shape[1:])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(features, dtype=kind).data)
            written += len(features)
        assert written == count > 0
