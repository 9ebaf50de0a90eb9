"""Batches: which images, shared by how many processes, with which content, read by how many workers."""

import pickle
from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from glf.data import batches as module
from glf.data.batches import (
    BatchReader,
    EpochBatches,
    MappedFile,
    describe_storage,
    image_loader,
    memmap_handle,
    open_memmap,
    to_tensor,
    worker_count,
)
from glf.data.images import ImageSet
from glf.data.sources import load_images
from glf.types import Batch
from photos import write_photos

Array = NDArray[np.uint8]
INDICES = np.arange(3, 300, 7)  # 43 indices, none of them equal to its own position


def order(seed: int = 0, epoch: int = 0, size: int = 8, **shared: int) -> list[list[int]]:
    batches = EpochBatches(INDICES, size, seed, **shared)
    batches.set_epoch(epoch)
    return [indices.tolist() for indices in batches]


# --- indices


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("epoch", [0, 3])
def test_processes_share_the_batch_that_one_would_have(world, epoch):
    whole = order(epoch=epoch)
    parts = [order(epoch=epoch, rank=rank, world=world) for rank in range(world)]
    assert len(whole) == 5
    for batch, *shares in zip(whole, *parts, strict=True):
        assert [len(share) for share in shares] == [8 // world] * world
        assert sorted(chain(*shares)) == sorted(batch)


def test_an_epoch_has_each_image_once_and_drops_the_remainder():
    batches = order()
    assert len(EpochBatches(INDICES, 8, 0)) == len(batches) == 43 // 8
    assert all(len(batch) == 8 for batch in batches)
    seen = Counter(chain(*batches))
    assert set(seen) <= set(INDICES.tolist())
    assert set(seen.values()) == {1}
    left_out = [set(INDICES.tolist()) - set(chain(*order(epoch=epoch))) for epoch in range(2)]
    assert len(left_out[0]) == len(left_out[1]) == 43 % 8
    assert left_out[0] != left_out[1], "no row is left out for good"


def test_the_order_follows_from_seed_and_epoch():
    assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
    orders = [order(seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    batches = EpochBatches(INDICES, 8, 0)
    first = [indices.tolist() for indices in batches]
    batches.set_epoch(1)
    second = [indices.tolist() for indices in batches]
    batches.set_epoch(0)
    assert [indices.tolist() for indices in batches] == first != second


@pytest.mark.parametrize(
    ("size", "world", "message"),
    [
        (44, 1, r"a batch of 44 is larger than the data \(43 training images\)"),
        (9, 2, "a global batch of 9 cannot be shared by 2 processes"),
    ],
)
def test_impossible_batches_are_refused(size, world, message):
    with pytest.raises(ValueError, match=message):
        EpochBatches(INDICES, size, 0, world=world)
    assert len(EpochBatches(INDICES, 43, 0)) == 1


# --- content


def holds(batch: Batch, pixels: np.ndarray, targets: np.ndarray, prior: np.ndarray | None) -> None:
    indices = batch.indices.numpy()
    assert batch.images.dtype == torch.uint8
    assert np.array_equal(batch.images.numpy(), pixels[indices].transpose(0, 3, 1, 2))
    assert np.array_equal(batch.target.numpy(), targets[indices])
    if prior is None:
        assert batch.prior is None
    else:
        assert np.array_equal(batch.prior.numpy(), prior[indices])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("with_prior", [False, True])
def test_a_batch_has_the_pixels_targets_and_prior_of_its_images(workers, with_prior, tmp_path):
    images = load_images("fashion-mini", "test").select(np.arange(300))
    prior = None
    if with_prior:  # as it comes from the cache: memory-mapped, read-only
        np.save(tmp_path / "prior.npy", np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32))
        prior = np.load(tmp_path / "prior.npy", mmap_mode="r")
    batches = EpochBatches(INDICES, 8, seed=5)
    feed = image_loader(images, batches, prior=prior, workers=workers)
    for epoch in range(2):  # workers persist between epochs and still get the new order
        batches.set_epoch(epoch)
        given = list(feed)
        assert [batch.indices.tolist() for batch in given] == order(seed=5, epoch=epoch)
        for batch in given:
            assert isinstance(batch, Batch)
            holds(batch, images.pixels, images.targets, prior)


def seen(feed: DataLoader[Batch]) -> list[Batch]:
    """Batches of two epochs, both in the order of the first: nothing calls set_epoch here."""
    return [batch for _ in range(2) for batch in feed]


@pytest.mark.parametrize("place", ["decoded", "memory-mapped"])
def test_batches_do_not_depend_on_the_workers(place, tmp_path, monkeypatch):
    monkeypatch.setattr("glf.data.images.IN_MEMORY", 0)
    photos = write_photos(tmp_path / "camera")
    images = load_images(str(photos), size=28, store="decode" if place == "decoded" else "pack")
    assert images.storage == place
    np.save(tmp_path / "prior.npy", np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32))
    prior = np.load(tmp_path / "prior.npy", mmap_mode="r")

    def feed(workers):
        batches = EpochBatches(np.arange(24), 5, seed=1)
        return image_loader(images, batches, prior=prior, workers=workers)

    spawned = feed(1)
    spawned.multiprocessing_context = "spawn"  # as on macOS and Windows: everything is sent, nothing is inherited
    expected = seen(feed(0))
    for batch in expected:
        holds(batch, images.pixels[:], images.targets, prior)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
    for other in (seen(feed(2)), seen(spawned)):
        assert len(other) == len(expected) == 8
        for a, b in zip(other, expected, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
            assert a.images.stride() == b.images.stride()


class Threads(BatchReader):
    def __getitem__(self, indices: np.ndarray) -> Batch:
        return super().__getitem__(indices)._replace(target=torch.full((len(indices),), torch.get_num_threads()))


def test_a_worker_has_one_thread(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(module, "BatchReader", Threads)
        images = load_images("fashion-mini", "test").select(np.arange(300))
        for workers, expected in ((0, 2), (1, 1)):
            batch = next(iter(image_loader(images, EpochBatches(INDICES, 8, seed=5), prior=None, workers=workers)))
            assert set(batch.target.tolist()) == {expected}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("workers", "limit", "ahead"),
    [(0, 2**31, None), (1, 2**31, 4), (2, 2**31, 4), (2, 2 * 8 * 784 * 3, 3), (2, 8 * 784, 1), (2, 0, 1)],
)
def test_prefetching_is_limited_by_shared_memory(workers, limit, ahead, monkeypatch):
    monkeypatch.setattr(module, "shared_memory", lambda: limit)
    images = load_images("fashion-mini", "test").select(np.arange(300))
    shared = EpochBatches(INDICES, 16, seed=5, rank=1, world=2)  # this loader has 8 of the 16
    assert image_loader(images, shared, prior=None, workers=workers).prefetch_factor == ahead


def test_a_prior_of_other_length_is_refused():
    images = load_images("fashion-mini", "test").select(np.arange(20))
    with pytest.raises(ValueError, match="the prior has features of 19 images, the data 20 images"):
        BatchReader(images, np.zeros((19, 4), dtype=np.float32))


def test_a_batch_is_a_copy():
    images = load_images("fashion-mini", "test").select(np.arange(20))
    before = images.pixels.copy()
    batch = BatchReader(images)[np.arange(5)]
    batch.images.zero_()
    batch.target.zero_()
    assert np.array_equal(images.pixels, before)
    assert images.targets.any()


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_come_first(channels):
    pixels = np.arange(2 * 4 * 5 * channels, dtype=np.uint8).reshape(2, 4, 5, channels)
    x = to_tensor(pixels)
    assert x.shape == (2, channels, 4, 5)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert np.shares_memory(x.numpy(), pixels)
    assert all(x[n, c, i, j] == pixels[n, i, j, c] for n, i, j, c in np.ndindex(pixels.shape))


# --- memory-mapped arrays in other processes


@pytest.fixture
def mapped(tmp_path: Path, colour: Array) -> Array:
    np.save(tmp_path / "a.npy", colour)
    array: Array = np.load(tmp_path / "a.npy", mmap_mode="r")
    return array


def test_an_array_in_memory_has_no_handle(colour: Array, mapped: Array) -> None:
    assert memmap_handle(colour) is colour
    assert memmap_handle(None) is None
    assert memmap_handle(mapped.transpose(0, 3, 1, 2)) is not None
    assert isinstance(memmap_handle(mapped[::2]), np.ndarray)  # not contiguous: sent unchanged


@pytest.mark.parametrize("indices", [slice(None), slice(5, 40), slice(65, 66), slice(3, 60)])
def test_a_slice_of_a_mapped_array_is_sent_as_a_handle(mapped: Array, colour: Array, indices: slice) -> None:
    part = mapped[indices][1:] if indices == slice(3, 60) else mapped[indices]  # a slice of a slice too
    sent = memmap_handle(part)
    assert isinstance(sent, MappedFile)
    again = open_memmap(pickle.loads(pickle.dumps(sent)))
    assert isinstance(again, np.memmap)
    assert not again.flags.writeable
    np.testing.assert_array_equal(again, part)
    np.testing.assert_array_equal(open_memmap(memmap_handle(again)), part)


def test_a_pickled_reader_has_no_mapped_pixels(mapped: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glf.data.images.IN_MEMORY", 0)
    images = load_images(str(tmp_path / "a.npy")).select(np.arange(10, 60))
    np.save(tmp_path / "prior.npy", np.random.default_rng(0).normal(size=(50, 200)).astype(np.float32))
    reader = BatchReader(images, np.load(tmp_path / "prior.npy", mmap_mode="r"))
    sent = pickle.dumps(reader)
    assert len(sent) < 3000
    indices = np.array([4, 4, 49])
    for given, expected in zip(pickle.loads(sent)[indices], reader[indices], strict=True):
        assert (given == expected).all()


# --- workers


@pytest.fixture
def by_storage(classes: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ImageSet]:
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
        ("decoded", True, 4, -1, 4),  # all devices, however many
    ],
)
def test_the_number_of_workers(
    by_storage: dict[str, ImageSet],
    place: str,
    gpu: bool,
    available: int,
    processes: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "cores", lambda: available)
    assert worker_count(by_storage[place], None, gpu=gpu, processes=processes) == expected
    assert worker_count(by_storage[place], 3, gpu=gpu, processes=processes) == 3
    assert worker_count(by_storage[place], 0, gpu=gpu, processes=processes) == 0
    with pytest.raises(ValueError, match="workers must be 0 or more, got -1"):
        worker_count(by_storage[place], -1, gpu=gpu)


def test_the_description_of_the_storage(by_storage: dict[str, ImageSet]) -> None:
    said = [
        describe_storage(by_storage[place], n) for place in ("in memory", "memory-mapped", "decoded") for n in (0, 1, 4)
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
    assert np.array_equal(by_storage["decoded"].pixels[:], by_storage["memory-mapped"].pixels)


@pytest.mark.parametrize(("free", "expected"), [(64, 1), (63, 0), (1000, 8)])
def test_workers_are_limited_by_shared_memory(
    by_storage: dict[str, ImageSet], free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cores", lambda: 8)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert worker_count(by_storage["decoded"], None, gpu=False, batch_bytes=32) == expected
    assert worker_count(by_storage["decoded"], 5, gpu=False, batch_bytes=32) == 5
