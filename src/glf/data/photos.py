"""Images one after the other, from any of them on: decoded once each, bad ones passed over, never all in memory."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glf.data.arrays import Arrays
from glf.data.decode import StoredSize, decode, side_limits
from glf.data.decode_all import decoded
from glf.data.files import Files
from glf.data.image_cache import pack_keys
from glf.data.images import UNREAD, Skipped, array_key
from glf.data.sources import find_source
from glf.files import printable


@dataclass(frozen=True, kw_only=True)
class Photos:
    """The images of a source for an encoder that sees them at ``size``."""

    source: Arrays | Files
    size: int | None
    key: str  # changes whenever the files or their order do

    def __len__(self) -> int:
        return len(self.source.pixels if isinstance(self.source, Arrays) else self.source.entries)

    def path(self, row: int) -> str:
        """Where an image is, as one would open it from here; of an array its number. Always text."""
        if isinstance(self.source, Arrays):
            return str(row)
        return str(self.source.root / self.source.entries[row].name).encode("utf-8", "backslashreplace").decode()

    def shape(self) -> StoredSize | None:
        """The shape of all images as far as it is known without decoding any: that of arrays."""
        if isinstance(self.source, Arrays):
            return StoredSize(int(self.source.pixels.shape[1]), int(self.source.pixels.shape[3]), False)
        return None

    def read(
        self, start: int, shape: StoredSize | None
    ) -> Generator[NDArray[np.uint8] | Skipped | StoredSize, None, None]:
        """From this image on, the pixels of each or why it is skipped; a shape where one does not have the given one.

        The shape is that of a stored set (data/fill.py): squares of one small size are kept, any others are resized.
        """
        if isinstance(self.source, Arrays):
            yield from self.source.pixels[start:]
            return
        files = self.source
        with closing(decoded(files, files.entries[start:], shape, side_limits(self.size))) as results:
            for result in results:
                if isinstance(result, bytes):
                    assert shape is not None
                    yield np.frombuffer(result, np.uint8).reshape(shape.side, shape.side, shape.channels)
                else:
                    yield result

    def has_come_back(self, row: int, why: str) -> bool:
        """Whether a file that was skipped because it could not be read, for want of rights or a network, can be now."""
        if isinstance(self.source, Arrays) or not why.startswith(UNREAD):
            return False
        try:
            return bool(self.source.read(self.source.entries[row]))
        except (OSError, ValueError):
            return False


def open_photos(data: str, *, size: int | None, root: Path | None = None, download: bool = False) -> Photos:
    """All images of a folder or a tar, or those of an array or of a named set."""
    found = find_source(data, "all", root=root, download=download)
    key = array_key(found.pixels) if isinstance(found, Arrays) else pack_keys(found, size)[1]
    return Photos(source=found, size=size, key=key)


def read_one(path: Path, shape: StoredSize) -> NDArray[np.uint8]:
    """A single file as an image of a set of this shape; an error that names it where it is none."""
    if not path.is_file():
        raise FileNotFoundError(f"no image at {path}: a query is a file, and what is searched comes last")
    try:
        pixels = decode(path.read_bytes(), side=shape.side)
        return np.array(np.broadcast_to(pixels, (shape.side, shape.side, shape.channels)))  # grey to colour
    except Exception as error:  # PIL's plugins raise almost anything on a broken file
        raise ValueError(f"{printable(str(path))} cannot be read as an image ({error}): give another file") from error
