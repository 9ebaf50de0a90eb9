"""How many processes read the images, which depends on where these live."""

import os
import shutil
from pathlib import Path
from typing import Protocol, runtime_checkable

from glf.data.store import Place

MOST = 16  # decoding processes beyond this wait for the disk, and their batches fill the memory


@runtime_checkable
class Placed(Protocol):
    """Whatever has a place that its images are read from."""

    @property
    def place(self) -> Place: ...


class WorkerError(OSError):
    """What is wrong with the data, for the user to read.

    Where a worker process raises it, torch makes a new exception of this class from the worker's whole traceback.
    Of that, only the line meant for the user is kept.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].rstrip())


def cores() -> int:
    """The cores that this process may use: a container or a batch system often grants a few of many."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory(accelerator: str) -> int:
    """Bytes of memory of the device that trains; on a CPU those that a container grants, where it does."""
    if accelerator == "gpu":
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 * 2**30
    try:
        granted = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:  # no container, or another kind of system
        return whole
    return min(whole, int(granted)) if granted.isdigit() else whole


def room() -> int:
    """Bytes of batches that may wait in shared memory: half of what is free, which in a container is often 32 MB."""
    try:
        return min(2 * 2**30, shutil.disk_usage("/dev/shm").free // 2)
    except OSError:  # macOS and Windows share memory by other means
        return 2 * 2**30


def worker_count(images: Placed, asked: int | None, *, gpu: bool, processes: int = 1, batch_bytes: int = 0) -> int:
    """What was asked for, or else what suits the place where the images live.

    Indexing memory is faster than the hand-over from another process. Memory-mapped images may come from the
    disk: a GPU should not wait for that, while a CPU that trains has no core to spare. Decoding takes every
    core that this process has for itself, next to the others of this node. There are no more workers than batches
    fit into shared memory, and none if not even one does.
    """
    if asked is not None:
        if asked < 0:
            raise ValueError(f"workers must be 0 or more, got {asked}")
        return asked
    if images.place in ("decoded", "streamed"):
        count = max(1, min(MOST, cores() // max(1, processes)))
    else:
        count = min(2, cores()) if images.place == "memory-mapped" and gpu else 0
    return min(count, room() // max(1, batch_bytes * max(1, processes)))


def described(images: Placed, workers: int) -> str:
    """Where the images live and who reads them, in the words of a run's first lines."""
    readers = f"{workers} worker{'s' if workers > 1 else ''}" if workers else "the training process"
    if images.place == "decoded":
        return f"decoded at every epoch by {readers}"
    if images.place == "streamed":
        return f"streamed by {readers}"
    return f"{images.place}, read by {readers}" if workers else images.place
