"""What the machine does for a test: memory that is measured, files that are limited, a small disk, no privileges."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CLEAR = Path("/proc/self/clear_refs")
_DROP_CAPABILITY, _OVERRIDE, _SEARCH = 24, 1, 2  # of prctl: root loses the right to read what it may not


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


class Peak:
    """Bytes of memory that a block took at most beyond what there was; known when it ends."""

    bytes = 0


@contextmanager
def peak() -> Iterator[Peak]:
    if not os.access(CLEAR, os.W_OK):
        pytest.skip("this system does not say how much memory was used")
    found, before = Peak(), _status("VmRSS")
    CLEAR.write_text("5")  # the peak is measured anew from here
    yield found
    found.bytes = _status("VmHWM") - before


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """A write beyond so many bytes of a file fails, as a quota makes it fail."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def unprivileged() -> None:
    """For preexec_fn: permissions count, even for root."""
    libc = ctypes.CDLL(None)
    for capability in (_OVERRIDE, _SEARCH):
        libc.prctl(_DROP_CAPABILITY, capability, 0, 0, 0)


def on_a_small_disk(code: str, folder: Path, size: str) -> str:
    """What Python code prints that runs with a disk of this size mounted at ``folder``, which nobody else sees."""
    shell = 'mount -t tmpfs -o size="$2" tmpfs "$1" || exit 77; exec "$3" -c "$4" "$1"'
    command = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        shell,
        "sh",
        str(folder),
        size,
        sys.executable,
        code,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("no unshare on this system")
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this system does not let a test mount a disk")
    assert done.returncode == 0, done.stderr
    return done.stdout
