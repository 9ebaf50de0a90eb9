"""glibc malloc settings for training on a CPU: freed memory is kept for the next step.

A training step allocates and frees the same large tensors again and again. By default glibc returns such memory to the
system at once, and the system zeroes every page before it hands it out again: up to a quarter of a step's time
(docs/speed.md). GPUs are not affected: torch caches their memory.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Options of glibc's mallopt: free memory at the top of the heap before it is returned, memory requested in advance,
# allocation size from which mmap is used, and the maximum number of mmapped allocations.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
_KEEP = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
# The values glibc adapts to in a process with large arrays; setting any option switches that adaptation off.
_DEFAULT = {_MMAP_MAX: 65536, _MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 64 * 2**20, _TOP_PAD: 128 * 1024}


@contextmanager
def retain_freed_memory(wanted: bool = True) -> Iterator[None]:
    """Keep freed memory in the process within the block, and return it afterwards. Does nothing without glibc."""
    libc = ctypes.CDLL(None) if wanted and sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    for option, value in _KEEP.items():
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in _DEFAULT.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)
