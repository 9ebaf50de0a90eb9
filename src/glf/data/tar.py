"""Strict reading of uncompressed tars: a truncated or damaged archive is an error, never a shorter data set."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from glf.files import open_regular, printable

PADDING = 2**20  # bytes checked after the end, which should be zeros
MAX_EXTENDED = 2**20  # bytes of an extended header, which holds long names and the like
EXTENDED = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class BoundedHeader(tarfile.TarInfo):
    """A tar header that cannot make the reader take memory for names of any length."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Any:
        header = super().frombuf(buf, encoding, errors)
        if header.type in EXTENDED and not 0 <= header.size <= MAX_EXTENDED:
            raise tarfile.ReadError(f"an extended header claims {header.size:,} bytes")
        return header


def tar_members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield every member of an uncompressed tar; ValueError if it is truncated or damaged.

    Python's reader takes an unreadable header for the end of the archive, does not require the block of zeros there,
    and follows any size, even backwards forever. This function checks all three, and for a second archive appended
    after the end.
    """
    at, after_member = 0, ""
    with open_regular(path) as file:
        total = os.fstat(file.fileno()).st_size
        try:
            with tarfile.open(fileobj=file, mode="r:", tarinfo=BoundedHeader) as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # the list would grow with the archive
                    if not 0 <= member.size <= total:
                        raise tarfile.ReadError(f"its member {member.name} claims {member.size:,} bytes")
                    at, after_member = tar.offset, f", after its member {member.name}"
                    yield member
                file.seek(tar.offset)
                after = file.read(PADDING)
            if len(after) < tarfile.BLOCKSIZE:
                raise tarfile.ReadError("truncated: it has no end")
            if after[: tarfile.BLOCKSIZE].strip(b"\0"):
                raise tarfile.ReadError("no valid header")
            if after.strip(b"\0"):
                raise tarfile.ReadError("data after its end, like several tars in one file")
        except GeneratorExit:
            raise
        except Exception as error:  # a damaged header makes the reader raise almost anything
            where = f"damaged at byte {at}{printable(after_member)}"
            raise ValueError(f"{path} cannot be read as an uncompressed tar: {why_damaged(error)} ({where})") from error


def why_damaged(error: Exception) -> str:
    """Return in one line why a tar could not be read."""
    if isinstance(error, RecursionError):
        return "extended headers that follow each other without end"
    return printable(getattr(error, "strerror", None) or str(error) or type(error).__name__)


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
