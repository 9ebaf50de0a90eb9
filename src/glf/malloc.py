"""Memory that a step frees is kept for the next step.

A training step on the CPU allocates and frees the same large tensors over and over. glibc returns such memory to the
system at once, and the system hands it back page by page, zeroed: up to a quarter of a step's time (docs/speed.md).
GPUs are not concerned; torch keeps their memory itself.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# glibc's mallopt: when to give back the top of the heap, what to ask for in advance, from which size on to ask the
# system for a region of its own, and how many such regions there may be.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
# What glibc's own adaptation arrives at in a process with large arrays; once told anything, it adapts no more.
_USUAL = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 64 * 2**20, _TOP_PAD: 128 * 1024}


@contextmanager
def retain_freed_memory(wanted: bool = True) -> Iterator[None]:
    """Inside, freed memory stays with the process; afterwards it goes back. Does nothing where there is no glibc."""
    libc = ctypes.CDLL(None) if wanted and sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    for option, value in _KEEP.items():
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in _USUAL.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)
