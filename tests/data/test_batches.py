"""Which rows a batch holds, whoever shares it, and that it holds what the data set has in those rows."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from glf.data import batches as module
from glf.data.batches import BatchReader, EpochBatches, image_loader, to_tensor
from glf.data.images import ImageSet, statistics, stratified_sample
from glf.data.sources import load_images
from glf.types import Batch
from photos import write_photos

ROWS = np.arange(3, 300, 7)  # 43 of the rows, none of them its own position


def order(seed: int = 0, epoch: int = 0, size: int = 8, **shared: int) -> list[list[int]]:
    batches = EpochBatches(ROWS, size, seed, **shared)
    batches.set_epoch(epoch)
    return [rows.tolist() for rows in batches]


# --- rows


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("epoch", [0, 3])
def test_processes_share_the_batch_that_one_would_have(world, epoch):
    whole = order(epoch=epoch)
    parts = [order(epoch=epoch, rank=rank, world=world) for rank in range(world)]
    assert len(whole) == 5
    for batch, *shares in zip(whole, *parts, strict=True):
        assert [len(share) for share in shares] == [8 // world] * world
        assert sorted(chain(*shares)) == sorted(batch)


def test_an_epoch_holds_each_row_once_and_drops_the_remainder():
    batches = order()
    assert len(EpochBatches(ROWS, 8, 0)) == len(batches) == 43 // 8
    assert all(len(batch) == 8 for batch in batches)
    seen = Counter(chain(*batches))
    assert set(seen) <= set(ROWS.tolist())
    assert set(seen.values()) == {1}
    left_out = [set(ROWS.tolist()) - set(chain(*order(epoch=epoch))) for epoch in range(2)]
    assert len(left_out[0]) == len(left_out[1]) == 43 % 8
    assert left_out[0] != left_out[1], "no row is left out for good"


def test_the_order_follows_from_seed_and_epoch():
    assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
    orders = [order(seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    batches = EpochBatches(ROWS, 8, 0)
    first = [rows.tolist() for rows in batches]
    batches.set_epoch(1)
    second = [rows.tolist() for rows in batches]
    batches.set_epoch(0)
    assert [rows.tolist() for rows in batches] == first != second


@pytest.mark.parametrize(
    ("size", "world", "message"),
    [
        (44, 1, r"a batch of 44 is larger than the data \(43 training images\)"),
        (9, 2, "a global batch of 9 cannot be shared by 2 processes"),
    ],
)
def test_batches_that_cannot_be(size, world, message):
    with pytest.raises(ValueError, match=message):
        EpochBatches(ROWS, size, 0, world=world)
    assert len(EpochBatches(ROWS, 43, 0)) == 1


# --- what is in them


def holds(batch: Batch, pixels: np.ndarray, targets: np.ndarray, prior: np.ndarray | None) -> None:
    rows = batch.indices.numpy()
    assert batch.images.dtype == torch.uint8
    assert np.array_equal(batch.images.numpy(), pixels[rows].transpose(0, 3, 1, 2))
    assert np.array_equal(batch.target.numpy(), targets[rows])
    if prior is None:
        assert batch.prior is None
    else:
        assert np.array_equal(batch.prior.numpy(), prior[rows])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("with_prior", [False, True])
def test_a_batch_holds_what_its_rows_hold(workers, with_prior, tmp_path):
    images = load_images("fashion-mini", "test").select(np.arange(300))
    prior = None
    if with_prior:  # as it comes from the cache: memory-mapped, read-only
        np.save(tmp_path / "prior.npy", np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32))
        prior = np.load(tmp_path / "prior.npy", mmap_mode="r")
    batches = EpochBatches(ROWS, 8, seed=5)
    feed = image_loader(images, batches, prior=prior, workers=workers)
    for epoch in range(2):  # workers live on from epoch to epoch, and hear of it all the same
        batches.set_epoch(epoch)
        given = list(feed)
        assert [batch.indices.tolist() for batch in given] == order(seed=5, epoch=epoch)
        for batch in given:
            assert isinstance(batch, Batch)
            holds(batch, images.pixels, images.targets, prior)


def seen(feed: DataLoader[Batch]) -> list[Batch]:
    """Two epochs; workers that live on give the second the first's order, since nobody tells of a new one."""
    return [batch for _ in range(2) for batch in feed]


@pytest.mark.parametrize("place", ["decoded", "memory-mapped"])
def test_whoever_reads_the_batches_are_the_same(place, tmp_path, monkeypatch):
    monkeypatch.setattr("glf.data.images.IN_MEMORY", 0)
    photos = write_photos(tmp_path / "camera")
    images = load_images(str(photos), size=28, store="decode" if place == "decoded" else "pack")
    assert images.storage == place
    np.save(tmp_path / "prior.npy", np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32))
    prior = np.load(tmp_path / "prior.npy", mmap_mode="r")

    def feed(workers):
        batches = EpochBatches(np.arange(24), 5, seed=1)
        return image_loader(images, batches, prior=prior, workers=workers)

    anew = feed(1)
    anew.multiprocessing_context = "spawn"  # as on macOS and Windows: everything is sent, nothing is inherited
    expected = seen(feed(0))
    for batch in expected:
        holds(batch, images.pixels[:], images.targets, prior)
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
    for other in (seen(feed(2)), seen(anew)):
        assert len(other) == len(expected) == 8
        for a, b in zip(other, expected, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
            assert a.images.stride() == b.images.stride()


class Threads(BatchReader):
    def __getitem__(self, rows: np.ndarray) -> Batch:
        return super().__getitem__(rows)._replace(target=torch.full((len(rows),), torch.get_num_threads()))


def test_a_worker_has_one_thread(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(module, "BatchReader", Threads)
        images = load_images("fashion-mini", "test").select(np.arange(300))
        for workers, expected in ((0, 2), (1, 1)):
            batch = next(iter(image_loader(images, EpochBatches(ROWS, 8, seed=5), prior=None, workers=workers)))
            assert set(batch.target.tolist()) == {expected}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("workers", "limit", "ahead"),
    [(0, 2**31, None), (1, 2**31, 4), (2, 2**31, 4), (2, 2 * 8 * 784 * 3, 3), (2, 8 * 784, 1), (2, 0, 1)],
)
def test_only_so_much_waits_in_shared_memory(workers, limit, ahead, monkeypatch):
    monkeypatch.setattr(module, "shared_memory", lambda: limit)
    images = load_images("fashion-mini", "test").select(np.arange(300))
    shared = EpochBatches(ROWS, 16, seed=5, rank=1, world=2)  # 8 of the 16 come through this loader
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


# --- a part of the data


@pytest.mark.parametrize("sizes", [(500, 300, 200), (700, 200, 95, 5), (1000,)], ids=str)
@pytest.mark.parametrize("count", [0, 10, 100, 333, 999, 1000])
def test_a_drawn_part_has_every_class_in_proportion(sizes, count):
    targets = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)) - 1, sizes))
    rows = stratified_sample(targets, count, seed=0)
    assert len(rows) == count
    assert np.array_equal(rows, np.unique(rows)), "sorted, each once"
    shares = [int((targets[rows] == label - 1).sum()) for label in range(len(sizes))]
    assert all(abs(share - size * count / 1000) <= 1 for share, size in zip(shares, sizes, strict=True))
    assert np.array_equal(rows, stratified_sample(targets, count, seed=0))
    if count in (10, 100, 333):
        assert not np.array_equal(rows, stratified_sample(targets, count, seed=1))


@pytest.mark.parametrize("count", [-1, 7])
def test_no_more_than_there_are(count):
    with pytest.raises(ValueError, match=f"cannot draw {count} of 6 images"):
        stratified_sample(np.zeros(6, dtype=np.int64), count, seed=0)


def test_statistics_are_the_channels_mean_and_deviation():
    pixels = np.random.default_rng(0).integers(0, 256, (50, 7, 5, 3), dtype=np.uint8)
    pixels[..., 2] = 9  # a constant channel must not divide by zero
    images = ImageSet(name="x", pixels=pixels, targets=np.full(50, -1), classes=(), key="k")
    mean, std = statistics(images)
    assert np.allclose(mean, (pixels / 255).mean((0, 1, 2)), atol=1e-4)
    assert np.allclose(std[:2], (pixels / 255).std((0, 1, 2))[:2], atol=1e-4)
    assert std[2] == 1e-3
