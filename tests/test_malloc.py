"""Page faults are counted in separate processes: the heap of this one has a history."""

import subprocess
import sys

import pytest

from glf.malloc import retain_freed_memory

COUNT = """
import resource, sys, torch
from glf.malloc import retain_freed_memory

def faults(repetitions=10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(repetitions):
        torch.empty(16 * 2**20).fill_(1.0)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / repetitions

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

torch.set_num_threads(1)
with retain_freed_memory(sys.argv[1] == "keep"):
    faults()
    print(faults(), held())
print(held())
"""


def count(how: str) -> list[float]:
    done = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux only")
def test_memory_is_kept_inside_and_returned_afterwards():
    (usual, *_), (kept, most, afterwards) = count("usual"), count("keep")
    assert usual > 20, "64 MiB from the system each time"  # huge pages of 2 MiB at best
    assert kept < usual / 10
    assert most - afterwards > 60e6


def test_an_error_inside_is_raised():
    with pytest.raises(KeyError), retain_freed_memory():
        raise KeyError
