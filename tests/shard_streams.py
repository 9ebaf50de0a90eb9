"""Helpers of the tests that read shards: batches of an epoch, and shards that are changed on purpose."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from glf.data.shards.loader import StreamDataset, StreamSampler, stream_dataloader
from glf.data.shards.read import ShardStream
from glf.types import Batch

COUNT, PER_SHARD, BATCH = 96, 12, 8  # eight shards, twelve batches


def batches(
    stream: ShardStream, workers: int = 0, *, images: int = COUNT, skipped: Path | None = None, **settings: Any
) -> DataLoader[Batch]:
    shared = {"batch_size": BATCH, "seed": 0, "shuffle": 15, "rank": 0, "world": 1, "prior": True, **settings}
    dataset = StreamDataset(stream, skipped_file=skipped, **shared)  # type: ignore[arg-type]
    sampler = StreamSampler(images, shared["batch_size"] * shared["world"])  # type: ignore[operator]
    return stream_dataloader(dataset, sampler, workers=workers)


def epoch(loader: DataLoader[Batch], number: int = 0, first: int = 0) -> list[Batch]:
    assert isinstance(loader.sampler, StreamSampler)
    loader.sampler.begin(number, first)
    return list(loader)


def numbers(found: list[Batch]) -> list[list[int]]:
    """The numbers of the samples in each batch."""
    return [batch.indices.tolist() for batch in found]


def assert_same(a: list[Batch], b: list[Batch]) -> None:
    assert len(a) == len(b) > 0
    for one, other in zip(a, b, strict=True):
        for name in ("images", "target", "indices", "prior"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def rewrite(path: Path, changed: dict[int, bytes | None], ending: str = ".png") -> None:
    """Rewrite a shard with other bytes for its n-th images (or other members), or without them where None."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    n = -1
    with tarfile.open(path, "w") as tar:
        for member, data in members:
            if member.name.endswith(ending):
                n += 1
                data = changed.get(n, data)  # type: ignore[assignment]
            if data is not None:
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def npy(values: list[float]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values, np.float32))
    return file.getvalue()
