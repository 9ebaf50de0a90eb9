"""What every kind of data source provides: folders, tars, arrays and named data sets are read through this class only.

A new kind of source is a subclass in a file of its own and one line in the table of ``sources.py``.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glf.files import printable

UNREAD = "cannot be read: "  # prefix of ``Skipped.why`` for a file that may be readable next time
MAX_CLASSES = 1_000_000  # a larger label is a mistake; each class has a name, so it would exhaust the memory


class MissingSplit(LookupError):  # noqa: N818 (a fact about the data, not always an error)
    """The source does not have this split; the message names those it has."""


class Skipped(NamedTuple):
    """A file that could not be decoded, or a folder that could not be entered; it is not part of the data set."""

    name: str
    why: str

    def line(self, between: str = "\t") -> str:
        r"""Name and reason in one line, without control characters; backslashes of the name are doubled.

        >>> print(Skipped("a\nb.jpg", "empty file").line(": "))
        a\nb.jpg: empty file
        """
        return printable(self.name.replace("\\", "\\\\")) + between + printable(self.why)


class Source(ABC):
    """One split of a data set, before any image is decoded. Images are numbered from 0 to ``len(source) - 1``.

    Images are either decoded from ``read(i)``, or they already are one array, ``pixels``; then nothing is decoded,
    resized or cached. Sources are sent to worker processes, so they must be small when pickled (unless they have
    ``pixels``), and ``read`` must be safe to call from several threads.
    """

    targets: NDArray[np.int64]  # (image,), -1 for images without a label
    classes: tuple[str, ...]  # names of the labels; empty if there are none
    pixels: NDArray[np.uint8] | None = None  # (image, height, width, channel), where the images are one array
    skipped: tuple[Skipped, ...] = ()  # files that were found but cannot be images of this source

    @property
    @abstractmethod
    def key(self) -> str:
        """16 hex digits that change whenever the images or their order change. Computed once, without decoding."""

    @property
    def listing(self) -> str:
        """Like ``key``, but the same for a copy on another machine, whose files may have other times."""
        return self.key

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images, including those that turn out to be undecodable."""

    @abstractmethod
    def name(self, i: int) -> str:
        """Return the name of image ``i`` inside the source, with the suffix of its format."""

    @abstractmethod
    def read(self, i: int) -> bytes:
        """Return image ``i`` as the content of an image file; OSError or ValueError if it cannot be read."""

    def path(self, i: int) -> str:
        """Return where the user finds image ``i``; its name if it is no file of its own."""
        return self.name(i)

    def check_unchanged(self, i: int) -> None:  # noqa: B027 (optional: most sources cannot change)
        """Raise OSError if image ``i`` is no longer the one that ``key`` stands for."""

    def __str__(self) -> str:
        """Return what messages call this source."""
        return type(self).__name__
