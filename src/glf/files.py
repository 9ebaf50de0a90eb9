"""Files that are whole or absent: written under another name, then renamed. Work that one process does at a time."""
# MERGED DOCS:
# | """Names that come from elsewhere, made fit for a line of a file and for a terminal."""

import errno
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
RESUME_ADVICE = "make room there and go on with --resume"  # what helps a run
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # some disks of a network have none


@contextmanager
def explain_full_disk(path: Path, advice: str = "make room there and try again") -> Iterator[None]:
    """A disk that is full, or a quota or limit that is reached, is said in one line, with what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OSError(f"{path} could not be written ({error.strerror}): {advice}") from error


@contextmanager
def atomic_write(path: Path, advice: str = "make room there and try again") -> Iterator[Path]:
    """Where to write instead of ``path``: it takes the name when the block ends well, and is removed when it does not.

    A kill leaves the old file or the new one, never half of one that looks whole; two processes do not meet.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with explain_full_disk(path, advice):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Deletes what ``whole`` was writing into this folder when its process was killed."""
    for path in folder.glob(".*"):
        name = re.fullmatch(r"\..+\.(\d+)", path.name)
        if name and not is_alive(int(name[1])):
            path.unlink(missing_ok=True)


def is_alive(process: int) -> bool:
    """Whether this machine has a process of that number; where asking would interrupt it, it is taken to have."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True


class LockOwner(NamedTuple):
    """Who works on a path."""

    process: int
    machine: str

    @property
    def may_live(self) -> bool:
        """False where it is known to have ended; of another machine's processes nothing is known."""
        return self.machine != platform.node() or is_alive(self.process)


def lock_path(path: Path) -> Path:
    """The file whose lock says that somebody works on this path. Without the lock it says nothing: a kill leaves it."""
    return path.with_name(f".{path.name}.lock")


def lock_owner(path: Path) -> LockOwner | None:
    """Who has noted itself in the lock's file; None where nobody has."""
    try:
        process, _, machine = lock_path(path).read_text().partition(" ")
        return LockOwner(int(process), machine.strip())
    except (OSError, ValueError):
        return None


@contextmanager
def exclusive_lock(path: Path, stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """Nobody else works on this path meanwhile; yields the lock's file descriptor, or -1 where there are no locks.

    A child that inherits the descriptor holds the lock too, and outlives a parent that is killed. Who waits looks
    whether it is ``stopped``, and then raises BlockingIOError.
    """
    if sys.platform == "win32":
        yield -1
        return
    lock = lock_path(path)
    with explain_full_disk(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(lock, stopped)
    try:
        yield file
    finally:
        lock.unlink(missing_ok=True)  # while it is held: whoever has it open finds that it is gone, and opens anew
        os.close(file)


def _locked(lock: Path, stopped: Callable[[], bool]) -> int:
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _take(file)
            if _is_still(file, lock):
                _sign(file)
                return file
        except BlockingIOError:
            if stopped():
                os.close(file)
                raise
            time.sleep(0.2)
        os.close(file)


def _take(file: int) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_still(file: int, path: Path) -> bool:
    """Whether the open file has that name; its last holder may have removed it since it was opened."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _sign(file: int) -> None:
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()} {platform.node()}\n".encode())


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    r"""One line without control characters: what cannot be printed is written as the bytes that it is on the disk.

    A file's name may hold anything but a slash: line breaks, codes that move a terminal's cursor, marks that turn the
    direction of writing, bytes that are no text at all.

    >>> print(printable("a\nb\x1b[2J"), printable(os.fsdecode(b"caf\xe9")), printable("café"))
    a\nb\x1b[2J caf\xe9 café
    """
    return "".join(c if c.isprintable() else _SHORT.get(c) or _as_bytes(c) for c in text)


def _as_bytes(character: str) -> str:
    try:
        data = os.fsencode(character)
    except UnicodeEncodeError:  # half of a pair, which no file system here gives, but a file's content may
        data = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)
