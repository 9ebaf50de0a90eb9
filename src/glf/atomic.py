"""Files that are whole or absent: written under another name, then renamed. Work that one process does at a time."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write instead of ``path``: it takes the name when the block ends well, and is removed when it does not.

    A kill leaves the old file or the new one, never half of one that looks whole; two processes do not meet.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def alone(path: Path, stopped: Callable[[], bool] = lambda: False) -> Iterator[int]:
    """Nobody else works on this path meanwhile; yields the lock's file descriptor, or -1 where there are no locks.

    A child that inherits the descriptor holds the lock too, and outlives a parent that is killed. Who waits looks
    whether it is ``stopped``, and then raises BlockingIOError.
    """
    if sys.platform == "win32":
        yield -1
        return
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stopped():
                    raise
                time.sleep(0.2)
        yield file.fileno()
