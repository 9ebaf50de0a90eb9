"""What a loaded data set is: uint8 images of one size with their targets, in memory, mapped or decoded on demand."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from glf.printable import printable

BLOCK = 1024  # images hashed at a time, so that a memory-mapped array never has to fit in memory


Place = Literal["in memory", "memory-mapped", "decoded", "streamed"]


class MissingSplit(LookupError):  # noqa: N818 (a fact about the data, not always an error)
    """The source has no such split; the message says which ones it has."""


UNREAD = "cannot be read: "  # begins the reason of a file that failed before it could be decoded


class Skipped(NamedTuple):
    """A file that is no part of the data set because it could not be decoded, or a folder that could not be entered."""

    name: str
    why: str

    def line(self, between: str = "\t") -> str:
        r"""Both in a line that nothing in them can break; a backslash in the name is doubled, so that it can be undone.

        >>> print(Skipped("a\nb.jpg", "empty file").line(": "))
        a\nb.jpg: empty file
        """
        return printable(self.name.replace("\\", "\\\\")) + between + printable(self.why)


@runtime_checkable
class Lazy(Protocol):
    """Images that become pixels when they are asked for. An array has all of this but ``select``."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[np.uint8]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Any) -> NDArray[np.uint8]: ...

    def select(self, rows: NDArray[np.int64] | slice) -> "Lazy":
        """The images of these rows, still lazy."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Images of one size. Of ``pixels`` one may rely on a shape and on ``pixels[rows]``, wherever they live.

    Equality is identity: two arrays have no single truth value, and ``key`` already says whether two sets
    hold the same pixels in the same order.
    """

    name: str  # what the user asked for
    pixels: NDArray[np.uint8] | Lazy  # (image, height, width, channel), one or three channels
    targets: NDArray[np.int64]  # (image,), -1 where there is no label
    classes: tuple[str, ...]  # empty when unlabelled
    key: str  # 16 hex digits that change whenever the pixels or their order change
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4 or self.pixels.shape[-1] not in (1, 3):
            raise ValueError(
                "pixels must be uint8 (image, height, width, channel) with one or three channels, "
                f"got {self.pixels.dtype} {self.pixels.shape}"
            )
        if self.targets.dtype != np.int64 or self.targets.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"targets must be int64 ({len(self.pixels)},), got {self.targets.dtype} {self.targets.shape}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def labelled(self) -> bool:
        """Whether every image has a label, and there is more than one class to tell apart."""
        return len(self.classes) > 1 and bool((self.targets >= 0).all())

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[3])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.pixels.shape[1]), int(self.pixels.shape[2])

    @property
    def place(self) -> Place:
        """Where the pixels come from, which decides who should read them."""
        if isinstance(self.pixels, np.ndarray):
            return "memory-mapped" if isinstance(self.pixels, np.memmap) else "in memory"
        return "decoded"

    def select(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> "Images":
        """The images of these rows, in the order of ``rows``; a mask selects where it is true.

        Consecutive rows stay a view of a memory-mapped array, and any others are copied into memory. Images that
        are decoded on demand stay so.
        """
        rows = np.asarray(rows)
        if rows.dtype == np.bool_ and rows.shape == (len(self),):
            rows = np.flatnonzero(rows)
        if rows.ndim != 1 or not (np.issubdtype(rows.dtype, np.integer) or rows.size == 0):
            raise ValueError(f"rows must be one-dimensional integers, got {rows.dtype} {rows.shape}")
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise ValueError(f"rows must be in 0..{len(self) - 1}, got {rows.min()}..{rows.max()}")
        rows = rows.astype(np.int64)
        consecutive = rows.size > 0 and bool((np.diff(rows) == 1).all())
        where = slice(int(rows[0]), int(rows[-1]) + 1) if consecutive else rows
        digest = hashlib.blake2b(self.key.encode() + rows.astype("<i8").tobytes(), digest_size=8)
        pixels = self.pixels[where] if isinstance(self.pixels, np.ndarray) else self.pixels.select(where)
        return replace(self, pixels=pixels, targets=self.targets[where], key=digest.hexdigest())


def array_key(pixels: NDArray[np.uint8]) -> str:
    """The key of an array source: a hash of its shape and of all its bytes."""
    digest = hashlib.blake2b(repr(pixels.shape).encode(), digest_size=8)
    for start in range(0, len(pixels), BLOCK):
        digest.update(np.ascontiguousarray(pixels[start : start + BLOCK]).data)
    return digest.hexdigest()
