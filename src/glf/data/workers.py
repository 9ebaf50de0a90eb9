"""How many processes read the images, which depends on where these live."""

import os

from glf.data.store import Images

MOST = 16  # decoding processes beyond this wait for the disk, and their batches fill the memory


def cores() -> int:
    """The cores that this process may use: a container or a batch system often grants a few of many."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(images: Images, asked: int | None, *, gpu: bool, processes: int = 1) -> int:
    """What was asked for, or else what suits the place where the images live.

    Indexing memory is faster than the hand-over from another process. Memory-mapped images may come from the
    disk: a GPU should not wait for that, while a CPU that trains has no core to spare. Decoding takes every
    core that this process has for itself, next to the others of this node.
    """
    if asked is not None:
        if asked < 0:
            raise ValueError(f"workers must be 0 or more, got {asked}")
        return asked
    if images.place == "decoded":
        return max(1, min(MOST, cores() // max(1, processes)))
    return min(2, cores()) if images.place == "memory-mapped" and gpu else 0


def described(images: Images, workers: int) -> str:
    """Where the images live and who reads them, in the words of a run's first lines."""
    readers = f"{workers} worker{'s' if workers > 1 else ''}" if workers else "the training process"
    if images.place == "decoded":
        return f"decoded at every epoch by {readers}"
    return f"{images.place}, read by {readers}" if workers else images.place
