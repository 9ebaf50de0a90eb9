"""Batches from shards: every image once per epoch, exact resuming, and bad samples and shards."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glf.data.shards.index import open_stream
from glf.data.shards.loader import StreamSampler, WorkerSampleStream, usable_workers
from glf.data.shards.read import SHARD_STRIDE, BrokenShard, ShardSample, ShardStream
from glf.files import RESUME_ADVICE
from machine import files_up_to
from shard_streams import BATCH, COUNT, PER_SHARD, assert_same, batches, epoch, numbers, rewrite


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_epoch_has_every_image_once(workers: int, folder: Path) -> None:
    loader = batches(open_stream(str(folder)), workers)
    found = numbers(epoch(loader, 3))
    assert [len(batch) for batch in found] == [BATCH] * (COUNT // BATCH)
    every = {shard * SHARD_STRIDE + place for shard in range(COUNT // PER_SHARD) for place in range(PER_SHARD)}
    assert Counter(n for batch in found for n in batch) == Counter(every)
    assert any(len({n // SHARD_STRIDE for n in batch}) > 2 for batch in found), "batches mix shards"
    assert numbers(epoch(loader, 4)) != found


@pytest.mark.parametrize("workers", [0, 2])
def test_processes_share_the_images_without_overlap(workers: int, folder: Path) -> None:
    stream = open_stream(str(folder))
    parts = [numbers(epoch(batches(stream, workers, batch_size=4, rank=rank, world=2))) for rank in range(2)]
    assert [len(part) for part in parts] == [12, 12]
    seen = Counter(n for part in parts for batch in part for n in batch)
    assert len(seen) == COUNT
    assert set(seen.values()) == {1}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_epoch_resumes_at_any_batch_bit_for_bit(workers: int, copied: Path) -> None:
    rewrite(copied / "shard-000002.tar", {3: b"no image", 4: None})
    rewrite(copied / "shard-000005.tar", {0: b""})
    stream = open_stream(str(copied))
    whole = batches(stream, workers, images=150)  # more than exist: a second pass over the shards
    first, second = epoch(whole, 1), epoch(whole, 2)
    assert len(first) == 18
    for k in sorted(np.random.default_rng(workers).choice(np.arange(1, 18), 2, replace=False).tolist()):
        again = batches(stream, workers, images=150)
        assert len(again) == 18  # the length of an epoch: Lightning counts from its first batch
        assert_same(epoch(again, 1, k), first[k:])
        assert isinstance(again.sampler, StreamSampler)
        again.sampler.set_epoch(2)  # as Lightning does: the next epoch starts at its first batch
        assert_same(list(again), second)


def test_samples_of_earlier_batches_are_not_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = ShardStream.decode

    def counted(self: ShardStream, sample: ShardSample, *, prior: bool) -> Any:
        decoded.append(sample.name)
        return decode(self, sample, prior=prior)

    monkeypatch.setattr(ShardStream, "decode", counted)
    assert len(epoch(batches(open_stream(str(folder))), 0, 10)) == 2
    assert len(decoded) == 2 * BATCH


def test_the_order_depends_on_seed_and_epoch(folder: Path) -> None:
    stream = open_stream(str(folder))
    orders = [numbers(epoch(batches(stream, seed=seed), number)) for seed in range(2) for number in range(2)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    assert orders[0] == numbers(epoch(batches(stream, seed=0), 0))


def test_short_epochs_read_different_shards(folder: Path) -> None:
    loader = batches(open_stream(str(folder)), images=2 * BATCH)
    shards = [{n // SHARD_STRIDE for batch in numbers(epoch(loader, number)) for n in batch} for number in range(6)]
    assert all(len(some) <= 3 for some in shards)
    assert len(set().union(*shards)) > 4


def test_a_long_epoch_starts_another_pass_after_all_images(folder: Path) -> None:
    found = [n for batch in numbers(epoch(batches(open_stream(str(folder)), images=2 * COUNT))) for n in batch]
    assert set(Counter(found[:COUNT]).values()) == set(Counter(found[COUNT:]).values()) == {1}
    assert found[:COUNT] != found[COUNT:]


def test_the_shuffle_buffer_has_the_given_size(folder: Path) -> None:
    urls = open_stream(str(folder)).urls
    settings: dict[str, Any] = {"seed": 0, "epoch": 0, "worker": 0, "workers": 1, "on_skip": print}
    samples = WorkerSampleStream(urls, shuffle=20, **settings)
    for _ in range(30):
        next(samples)
        assert len(samples.buffer) == 20
    unshuffled = WorkerSampleStream(urls, shuffle=1, **settings)
    order = [next(unshuffled).number // SHARD_STRIDE for _ in range(PER_SHARD - 1)]
    assert set(order) == {unshuffled.shards(0)[0]}


def test_every_worker_has_a_shard(folder: Path) -> None:
    stream = open_stream(str(folder))
    asked = ((2, 1), (16, 1), (16, 3), (0, 8))
    assert [usable_workers(stream, workers, world) for workers, world in asked] == [2, 8, 2, 0]
    with pytest.raises(ValueError, match=r"8 shards are too few for 9 processes: write more .* --per-shard"):
        usable_workers(stream, 0, 9)


def test_an_epoch_cannot_start_after_its_end() -> None:
    with pytest.raises(ValueError, match="12 batches cannot start at batch 13"):
        StreamSampler(COUNT, BATCH).begin(0, 13)
    with pytest.raises(ValueError, match="a batch of 100 is larger than an epoch of 96"):
        StreamSampler(COUNT, 100)


def test_undecodable_samples_are_listed_once_and_replaced(copied: Path, tmp_path: Path) -> None:
    rewrite(copied / "shard-000002.tar", {3: b"no image", 4: None})
    stream, skipped = open_stream(str(copied)), tmp_path / "skipped.txt"
    skipped.write_text("before\tby the probe\n")
    for _ in range(2):
        found = epoch(batches(stream, 2, skipped=skipped))
        assert [len(batch.indices) for batch in found] == [BATCH] * 12
        assert all(len(set(batch.indices.tolist())) == BATCH for batch in found), "no duplicates in a batch"
        assert 2 * SHARD_STRIDE + 3 not in {n for batch in numbers(found) for n in batch}
    lines = skipped.read_text().splitlines()
    assert lines[0] == "before\tby the probe"
    assert sorted(line.partition("/")[0] for line in lines[1:]) == ["shard-000002.tar"] * 2
    assert sorted(line.partition("\t")[2].partition(" ")[0] for line in lines[1:]) == ["no", "not"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk_for_skipped_txt_is_one_line(workers: int, copied: Path, tmp_path: Path) -> None:
    rewrite(copied / "shard-000002.tar", {3: b"no image"})
    listed = tmp_path / "skipped.txt"
    listed.write_text("a line\n" * 100_000)  # longer than a batch in shared memory, which is limited too
    with files_up_to(700_010), pytest.raises(OSError, match="could not be written") as error:
        epoch(batches(open_stream(str(copied)), workers, skipped=listed))
    assert str(error.value) == f"{listed} could not be written (File too large): {RESUME_ADVICE}"


def test_only_undecodable_images_are_an_error_and_no_endless_loop(copied: Path) -> None:
    stream = open_stream(str(copied))
    for path in copied.glob("*.tar"):
        rewrite(path, dict.fromkeys(range(PER_SHARD), b"no image"))
    with pytest.raises(BrokenShard, match="none of 23 consecutive images could be decoded"):
        epoch(batches(stream))
    for path in copied.glob("*.tar"):
        rewrite(path, dict.fromkeys(range(PER_SHARD)))
    with pytest.raises(BrokenShard, match="no images in any of the shards of one worker"):
        epoch(batches(stream))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_truncated_shard_is_one_line(workers: int, copied: Path) -> None:
    stream = open_stream(str(copied))
    whole = (copied / "shard-000004.tar").read_bytes()
    (copied / "shard-000004.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BrokenShard) as error:
        epoch(batches(stream, workers))
    assert str(error.value).startswith(f"cannot read the shard {copied / 'shard-000004.tar'}: ")
    assert str(error.value).endswith("; repair it, and continue a run that had begun with --resume")
    assert len(str(error.value).splitlines()) == 1
