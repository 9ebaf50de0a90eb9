"""map_in_threads gives the same result and restores torch's number of threads."""

import threading
from collections.abc import Iterator

import pytest
import torch

from glf.data.augment.augment import augment, map_in_threads
from glf.data.augment.policies import POLICIES
from glf.types import Batch


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("count", "threads"), [(7, 3), (2, 4), (5, 1), (0, 2)])
def test_every_entry_is_filled_once(count: int, threads: int) -> None:
    torch.set_num_threads(threads)
    seen: list[tuple[slice, int]] = []

    def entries(part: slice) -> torch.Tensor:
        seen.append((part, torch.get_num_threads()))
        return torch.arange(float(count))[part]

    assert torch.equal(map_in_threads(entries, torch.full((count,), -1.0)), torch.arange(float(count)))
    assert sorted(i for part, _ in seen for i in range(count)[part]) == list(range(count))
    assert len(seen) == min(count, threads)
    assert {inside for _, inside in seen} <= {1}  # one thread per operation
    assert torch.get_num_threads() == threads


def test_slices_run_at_the_same_time() -> None:
    torch.set_num_threads(2)
    together = threading.Barrier(2, timeout=20)

    def waits_for_the_other(part: slice) -> torch.Tensor:
        together.wait()
        return torch.ones(1)

    assert map_in_threads(waits_for_the_other, torch.zeros(2)).sum() == 2


def test_an_error_is_raised_and_the_threads_are_restored() -> None:
    torch.set_num_threads(2)

    def fails(part: slice) -> torch.Tensor:
        raise ValueError("no such image")

    with pytest.raises(ValueError, match="no such image"):
        map_in_threads(fails, torch.zeros(4))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("colours", ["fused", "exact"])
def test_large_views_do_not_depend_on_the_number_of_threads(colours: str) -> None:
    images = torch.randint(0, 256, (5, 3, 80, 80), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    indices = torch.arange(5)

    def views(threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        seeded = torch.Generator().manual_seed(1)
        made = augment(Batch(images, indices, indices, None), POLICIES["symmetric"], 70, seeded, colours)  # type: ignore[arg-type]
        return torch.stack(made.x)

    torch.testing.assert_close(views(2), views(1), rtol=0, atol=1e-6)
