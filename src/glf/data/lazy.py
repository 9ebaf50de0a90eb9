"""Images that stay files: decoded whenever they are asked for, by whoever asks."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glf.data.decode import StoredSize, decode_as, quiet
from glf.data.files import Entry, Files
from glf.data.images import WorkerError
from glf.device import MAX_WORKERS, cores
from glf.files import printable

SHARE = 8  # images that make a thread worth its start


class ChangedFile(WorkerError):  # noqa: N818 (named after what happened)
    """A file that was a good image when the set was checked, and no longer is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodeOnRead:
    """Looks like the packed array of the same files, row for row and bit for bit, as far as ``pixels[rows]`` goes."""

    files: Files
    rows: NDArray[np.int64]  # the entry that each image comes from
    form: StoredSize

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.rows), self.form.side, self.form.side, self.form.channels

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        return np.dtype(np.uint8)

    @property
    def ndim(self) -> int:
        return 4

    @property
    def nbytes(self) -> int:
        """What they would need in memory."""
        return len(self.rows) * self.form.nbytes

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: NDArray[np.int64] | slice) -> "DecodeOnRead":
        """The images of these rows; nothing is decoded yet."""
        return replace(self, rows=self.rows[rows])

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        """The pixels of these rows: whatever numpy takes as the index of one dimension."""
        if isinstance(rows, tuple):
            raise TypeError(f"images that are decoded on demand are indexed by rows alone, not by {rows!r}")
        found = np.asarray(self.rows[rows])
        flat = found.reshape(-1)
        out = np.empty((len(flat), *self.shape[1:]), np.uint8)
        # A loader's workers share the cores already; the process they work for has them all when it decodes itself.
        threads = min(MAX_WORKERS, cores()) if multiprocessing.parent_process() is None else 1
        parts = np.array_split(np.arange(len(flat)), max(1, min(threads, len(flat) // SHARE)))
        with quiet():
            if len(parts) == 1:
                self._decode(flat, out)
            else:
                with ThreadPoolExecutor(len(parts)) as pool:
                    list(pool.map(lambda part: self._decode(flat[part], out[part[0] : part[-1] + 1]), parts))
        return out.reshape(found.shape + self.shape[1:])

    def _decode(self, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        for row, pixels in zip(rows, out, strict=True):
            entry = self.files.entries[row]
            try:
                pixels[:] = decode_as(self.files.read(entry), self.form)  # a grey one among colours fills all channels
            except Exception as error:  # PIL's plugins raise almost anything on a broken file
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                path = printable(str(self.files.root / entry.name))
                raise ChangedFile(f"{path} was an image when the data were checked and no longer is: {why}") from None


class CompactEntries(Sequence[Entry]):
    """Entries as four arrays.

    A million tuples would be copied into every worker, page by page, as the counting of references writes to them.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        names = [entry.name.encode("utf-8", "surrogatepass") for entry in entries]  # a name need not be valid text
        self.names = np.frombuffer(b"".join(names), np.uint8)
        self.ends = np.cumsum([len(name) for name in names], dtype=np.int64)
        self.numbers = np.array([(e.size, e.stamp, -1 if e.offset is None else e.offset) for e in entries], np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        at = range(len(self))[index]
        size, stamp, offset = self.numbers[at].tolist()
        name = self.names[self.ends[at - 1] if at else 0 : self.ends[at]].tobytes()
        return Entry(name.decode("utf-8", "surrogatepass"), size, stamp, None if offset < 0 else offset)
