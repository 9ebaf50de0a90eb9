"""Parts of a batch side by side, each in a thread of its own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor


def in_parts(function: Callable[[slice], Tensor], out: Tensor) -> Tensor:
    """Fill ``out`` by parts, as many as torch has threads; every operation inside of a part has one.

    Operations on a single image are too short to be shared by threads: waiting for each other takes them more time
    than the work, and all the more so while loader workers keep the cores busy.
    """
    threads = torch.get_num_threads()

    def fill(part: slice) -> None:
        out[part] = function(part)

    ends = [len(out) * i // threads for i in range(threads + 1)]
    parts = [slice(start, end) for start, end in pairwise(ends) if start < end]
    if len(parts) < 2:
        for part in parts:
            fill(part)
        return out
    torch.set_num_threads(1)  # for all threads of this process
    try:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(fill, parts))
    finally:
        torch.set_num_threads(threads)
    return out
