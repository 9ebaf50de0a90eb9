"""The machine: devices, cores, memory, global seeds."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def accelerator(device: str) -> str:
    """Resolve ``auto`` to cpu, gpu or mps, the names that Lightning uses."""
    if device not in ("auto", "cpu", "gpu", "mps"):
        raise ValueError(f"unknown device {device!r}: auto, cpu, gpu or mps")
    if not is_available(device):
        raise ValueError(f"this machine has no {device} that torch can use: --device cpu, or auto")
    if device != "auto":
        return device
    return "gpu" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def is_available(device: str) -> bool:
    """Whether torch can use this kind of device here."""
    if device == "gpu":
        return torch.cuda.is_available()
    return device != "mps" or torch.backends.mps.is_available()


def torch_device(device: str) -> str:
    """Resolve ``auto``, cpu, gpu or mps to torch's name for the device."""
    resolved = accelerator(device)
    return "cuda" if resolved == "gpu" else resolved


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy a small CPU tensor to a device without waiting for the device.

    On Apple's GPUs the copy waits: torch would free the CPU tensor before it has been read.
    """
    return value.to(device, non_blocking=device.type != "mps")


def cores() -> int:
    """Number of cores this process may use; a container or batch system often grants only some."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory(accelerator: str) -> int:
    """Memory of the training device in bytes; on a CPU at most the container's limit."""
    if accelerator == "gpu":
        return int(torch.cuda.get_device_properties(0).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 * 2**30
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:  # no container, or another kind of system
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def restored_random_state() -> Iterator[None]:
    """The global generators continue afterwards as if nothing had drawn from them or seeded them; not those of GPUs."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)
