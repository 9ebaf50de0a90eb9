"""Strict reading of uncompressed tars: a truncated or damaged archive is an error, never a shorter data set."""

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PADDING = 2**20  # bytes checked after the end, which should be zeros


def tar_members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield every member of an uncompressed tar; ValueError if it is truncated or damaged.

    Python's reader takes an unreadable header for the end of the archive, does not require the block of zeros there,
    and follows a negative size backwards forever. This function checks all three, and for a second archive appended
    after the end.
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
            raise tarfile.ReadError(f"truncated: it has no end after byte {tar.offset}")
        if after[: tarfile.BLOCKSIZE].strip(b"\0"):
            raise tarfile.ReadError(f"damaged at byte {tar.offset}")
        if after.strip(b"\0"):
            raise tarfile.ReadError(f"data after its end at byte {tar.offset}, like several tars in one file")
    except (OSError, GeneratorExit):
        raise
    except Exception as error:  # a damaged header makes the reader raise almost anything
        why = str(error) or type(error).__name__
        raise ValueError(f"{path} cannot be read as an uncompressed tar: {why}") from error


def why_unusable(member: tarfile.TarInfo) -> str | None:
    """Return why a member cannot be read as a file inside the tar; None if it can."""
    inside = PurePosixPath(member.name)
    if inside.is_absolute() or ".." in inside.parts:
        return "its name leads out of the tar"
    if member.islnk() or member.issym():
        return "a link, not a file"
    if not member.isreg():
        return "no regular file"
    return "stored with holes, as a sparse file" if member.issparse() else None
