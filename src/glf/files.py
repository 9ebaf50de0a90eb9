"""Files: reading what a user names, atomic writes, locks, messages for full disks and limits, printable names."""

import errno
import io
import os
import platform
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from glf.runfiles import PAGE_MARK, WRITTEN

RESUME_ADVICE = "free some space there, then continue with --resume"
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # raised by some network file systems
_PATIENCE = 2.0  # seconds of waiting for a lock before saying so
_PARTIAL = re.compile(r"\..+\.(\d+)\.glf-partial")  # names of temporary files, which nothing else has
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a file that a user named for reading; OSError if it is not a regular file.

    A pipe, a device or a socket may have no end, and opening a pipe may wait forever. What is opened is what is
    checked: the path may have changed since it was listed.
    """
    return open(os.fspath(path), "rb", opener=_regular_only)


def _regular_only(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # regular files ignore the flag
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_regular(path: Path | str, most: int) -> bytes:
    """Return the content of a file that a user named; ValueError if it has more than ``most`` bytes."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path} has more than {most:,} bytes: give another file")
    return data


def require_open_files(needed: int) -> None:
    """Raise this process's limit of open files as far as it may, if it is too low; OSError if it stays too low.

    Without that, workers fail one by one, and the process that waits for them hangs.
    """
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    with suppress(ValueError, OSError):  # some systems have another, lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed < needed:
        raise OSError(
            f"this process may open {allowed} files at once, and the command needs up to {needed}: raise the limit"
            f" (ulimit -n {needed}), or set fewer --workers if it has that option"
        )


@contextmanager
def explain_full_disk(path: Path, advice: str = "free some space there and try again") -> Iterator[None]:
    """Turn the error of a full disk, a quota or a file-size limit into one line with advice."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OSError(f"{path} could not be written ({error.strerror}): {advice}") from error


@contextmanager
def atomic_write(path: Path, advice: str = "free some space there and try again") -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the block succeeds and is deleted when it fails.

    After a kill, ``path`` is the old file or the new one, never a partial one. Two processes use different names. A
    link stays a link: what it points to is replaced. Devices, pipes and folders are refused.
    """
    path = regular_file(path)
    partial = partial_path(path)
    with explain_full_disk(path, advice):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def partial_path(path: Path, process: int | None = None) -> Path:
    """The temporary file of a process, else of this one, for a path. Its name says that glf wrote it, and who of it."""
    return path.with_name(f".{path.name}.{process or os.getpid()}.glf-partial")


def regular_file(path: Path) -> Path:
    """The file that writing to a path would replace, links followed; ValueError if that is not a regular file."""
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise ValueError(f"{path} is a link to itself: choose another name")
    if target.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file in it")
    if path.exists() and not target.is_file():  # /dev/stdout may be a link to a pipe, which has no name
        raise ValueError(f"{path} is a device or a pipe, not a file: choose another name")
    return target


def check_output(path: Path, written_before: Callable[[Path], bool]) -> None:
    """Refuse an output that cannot be written, or that would replace a file of the user's: called before any work.

    ``written_before`` tells whether an existing file was written by the same command. An empty file is nobody's work,
    unless it has the name of a run's file.
    """
    target = regular_file(path)
    taken = target.exists() and (target.stat().st_size or target.name in WRITTEN)
    if taken and not written_before(target):
        raise ValueError(f"{path} exists and was not written by this command: choose another --out, or move it away")
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ValueError(f"{path} cannot be written, because {folder} is not a folder: choose another --out")
    with explain_full_disk(path), tempfile.TemporaryFile(dir=folder):  # fails if the folder is not writable
        pass


def sidecar(path: Path, suffix: str) -> Path:
    """The name of a file that belongs to an output: the output's own name and a suffix that nothing else uses.

    >>> str(sidecar(Path("out/embeddings.npy"), "json"))
    'out/embeddings.npy.glf.json'
    """
    return path.with_name(f"{path.name}.glf.{suffix}")


def first_line(path: Path) -> str:
    """The beginning of a text file, at most 4,000 characters; empty if it is not text."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline(4000).rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        return ""


def is_page(path: Path) -> bool:
    """Whether a file is a page of `glf report`."""
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return PAGE_MARK.encode() in file.read(1000)


def is_partial(path: Path) -> bool:
    """Whether this is a temporary file of ``atomic_write``."""
    return _PARTIAL.fullmatch(path.name) is not None


def remove_leftovers(folder: Path, of: str = "") -> None:
    """Delete the temporary files that ``atomic_write`` left in a folder when its process was killed: all, or those of
    one file.
    """
    for path in folder.glob(".*"):
        name = _PARTIAL.fullmatch(path.name)
        if name and path.name.startswith(f".{of}") and not _is_alive(int(name[1])):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Return whether a process with this id runs on this machine; always True on Windows."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True


class LockOwner(NamedTuple):
    """The process that holds a lock."""

    process: int
    machine: str


def lock_path(path: Path) -> Path:
    """Return the lock file of a path. Its existence means nothing: a killed process leaves it behind."""
    return path.with_name(f".{path.name}.lock")


def lock_owner(path: Path) -> LockOwner | None:
    """Return the process that wrote its name into the lock file, if any."""
    try:
        process, _, machine = lock_path(path).read_text().partition(" ")
        return LockOwner(int(process), machine.strip())
    except (OSError, ValueError):
        return None


@contextmanager
def exclusive_lock(path: Path, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold the lock of a path; wait while another process or thread holds it.

    A wait of more than two seconds is announced on stderr. It ends with a BlockingIOError when ``stopped`` returns
    True. The operating system releases the lock of a
    killed process; forked children do not hold it. Where a file system has no locks, the block runs without one.
    """
    lock = FileLock(lock_path(path))
    lock_path(path).parent.mkdir(parents=True, exist_ok=True)
    with explain_full_disk(lock_path(path)):
        try:
            _acquire(lock, path, stopped)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    try:
        if lock.is_locked:
            with suppress(OSError):  # the owner is only for messages: a full disk must not prevent the lock
                lock_path(path).write_text(f"{os.getpid()} {platform.node()}\n")
        yield
    finally:
        if lock.is_locked:
            lock_path(path).unlink(missing_ok=True)  # while held; a waiting process notices and creates a new file
            lock.release()


def _acquire(lock: FileLock, path: Path, stopped: Callable[[], bool]) -> None:
    began: float | None = time.monotonic()
    while True:
        try:
            lock.acquire(timeout=0.2)
            return
        except Timeout:
            if stopped():
                raise BlockingIOError(errno.EWOULDBLOCK, f"{lock.lock_file} is held by another process") from None
        if began is not None and time.monotonic() - began > _PATIENCE:
            began = None
            _say_who_holds(path)


def _say_who_holds(path: Path) -> None:
    owner = lock_owner(path)
    who = "another process" if owner is None else f"process {owner.process} on {owner.machine}"
    if owner is not None and owner.machine == platform.node() and not _is_alive(owner.process):
        who = f"a child of process {owner.process}, which has ended: end that child"
    print(printable(f"waiting for {lock_path(path)}, held by {who}"), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    r"""Return text as one line without control characters; unprintable characters become escaped bytes.

    File names may contain line breaks, terminal escape codes, text-direction marks and bytes that are not text.

    >>> print(printable("a\nb\x1b[2J"), printable(os.fsdecode(b"caf\xe9")), printable("café"))
    a\nb\x1b[2J caf\xe9 café
    """
    return "".join(c if c.isprintable() else _SHORT.get(c) or _as_bytes(c) for c in text)


def _as_bytes(character: str) -> str:
    try:
        data = os.fsencode(character)
    except UnicodeEncodeError:  # a lone surrogate, which may occur in a file's content
        data = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)
