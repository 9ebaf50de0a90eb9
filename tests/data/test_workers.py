"""As many readers as suit the place where the images live."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from glf.data import batches
from glf.data.batches import describe_storage, worker_count
from glf.data.images import ImageSet
from glf.data.sources import load_images
from glf.device import cores


@pytest.fixture
def images(classes: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ImageSet]:
    found = [load_images(str(classes), store="decode"), load_images(str(classes))]
    monkeypatch.setattr("glf.data.images.IN_MEMORY", 0)
    found.append(load_images(str(classes)))
    return {images.storage: images for images in found}


@pytest.mark.parametrize(
    ("place", "gpu", "available", "processes", "expected"),
    [
        ("in memory", False, 8, 1, 0),
        ("in memory", True, 8, 1, 0),
        ("memory-mapped", False, 8, 1, 0),
        ("memory-mapped", True, 8, 1, 2),
        ("memory-mapped", True, 1, 1, 1),
        ("decoded", False, 8, 1, 8),
        ("decoded", True, 8, 1, 8),
        ("decoded", True, 64, 1, 16),
        ("decoded", True, 64, 8, 8),
        ("decoded", True, 4, 8, 1),
        ("decoded", True, 4, -1, 4),  # all devices, however many these are
    ],
)
def test_the_number_of_workers(
    images: dict[str, ImageSet],
    place: str,
    gpu: bool,
    available: int,
    processes: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "cores", lambda: available)
    assert worker_count(images[place], None, gpu=gpu, processes=processes) == expected
    assert worker_count(images[place], 3, gpu=gpu, processes=processes) == 3
    assert worker_count(images[place], 0, gpu=gpu, processes=processes) == 0
    with pytest.raises(ValueError, match="workers must be 0 or more, got -1"):
        worker_count(images[place], -1, gpu=gpu)


def test_cores_are_those_that_were_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    def granted(_: int) -> set[int]:
        return {3, 5, 6}

    monkeypatch.setattr(os, "sched_getaffinity", granted, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert cores() == 5


def test_where_the_images_live_in_words(images: dict[str, Any]) -> None:
    said = [
        describe_storage(images[place], n) for place in ("in memory", "memory-mapped", "decoded") for n in (0, 1, 4)
    ]
    assert said == [
        "in memory",
        "in memory, read by 1 worker",
        "in memory, read by 4 workers",
        "memory-mapped",
        "memory-mapped, read by 1 worker",
        "memory-mapped, read by 4 workers",
        "decoded at every epoch by the training process",
        "decoded at every epoch by 1 worker",
        "decoded at every epoch by 4 workers",
    ]
    assert np.array_equal(images["decoded"].pixels[:], images["memory-mapped"].pixels)


@pytest.mark.parametrize(("free", "expected"), [(64, 1), (63, 0), (1000, 8)])
def test_no_more_workers_than_batches_fit_into_shared_memory(
    images: dict[str, ImageSet], free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "cores", lambda: 8)
    monkeypatch.setattr(batches.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert batches.worker_count(images["decoded"], None, gpu=False, batch_bytes=32) == expected
    assert batches.worker_count(images["decoded"], 5, gpu=False, batch_bytes=32) == 5
