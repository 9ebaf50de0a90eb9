"""The members of a tar, from first to last, or an error: never a part of them without a word."""

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PADDING = 2**20  # bytes looked at behind the end, where there should be zeros


def members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Every member of an uncompressed tar; ValueError where it is cut short or damaged.

    Python's reader takes a header that it cannot read for the end of the archive, does without the block of zeros that
    belongs there, and follows a size below zero backwards for ever. All three are looked for here, and so is another
    archive behind the end.
    """
    try:
        with tarfile.open(path, "r:") as tar, open(path, "rb") as file:
            for member in tar:
                if member.size < 0:
                    raise tarfile.ReadError(f"the member at byte {member.offset} has a size below zero")
                yield member
            file.seek(tar.offset)
            after = file.read(PADDING)
        if len(after) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"cut short: it has no end after byte {tar.offset}")
        if after[: tarfile.BLOCKSIZE].strip(b"\0"):
            raise tarfile.ReadError(f"damaged at byte {tar.offset}")
        if after.strip(b"\0"):
            raise tarfile.ReadError(f"it goes on after its end at byte {tar.offset}, like several tars in one file")
    except (OSError, GeneratorExit):
        raise
    except Exception as error:  # a damaged header makes the reader raise almost anything
        why = str(error) or type(error).__name__
        raise ValueError(f"{path} cannot be read as an uncompressed tar: {why}") from error


def why_passed_over(member: tarfile.TarInfo) -> str | None:
    """What keeps a member from being read as a file where it lies; None for one that can be."""
    place = PurePosixPath(member.name)
    if place.is_absolute() or ".." in place.parts:
        return "its name leads out of the tar"
    if member.islnk() or member.issym():
        return "a link, not a file"
    if not member.isreg():
        return "no regular file"
    return "stored with holes, as a sparse file" if member.issparse() else None
