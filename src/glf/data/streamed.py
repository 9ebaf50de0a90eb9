"""Batches of a stream: which worker reads which, and how the epoch is gone on with in its middle."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from glf.atomic import GO_ON, writing
from glf.data.decode import quiet
from glf.data.lane import Lane
from glf.data.loader import deaf, to_tensor
from glf.data.samples import BrokenShard, Sample
from glf.data.store import Skipped
from glf.data.stream import Read, Stream, why_skipped
from glf.data.workers import WorkerError, room
from glf.types import Batch


class Step(NamedTuple):
    """Asks a worker for one batch."""

    epoch: int
    batch: int


class StreamSteps(Sampler[Step]):
    """The steps of one epoch, as many for every process. They tell the workers which epoch it is."""

    def __init__(self, images: int, batch_size: int) -> None:
        if batch_size > images:
            raise ValueError(f"a batch of {batch_size} is larger than an epoch of {images} images")
        self.images, self.batch_size = images, batch_size
        self.epoch = self.first = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of every epoch."""
        self.epoch = epoch

    def begin(self, epoch: int, batch: int) -> None:
        """The next epoch that is iterated over begins with this batch of it; those that follow, with their first."""
        if not 0 <= batch <= len(self):
            raise ValueError(f"an epoch of {len(self)} batches cannot begin with batch {batch}")
        self.epoch, self.first = epoch, batch

    def __len__(self) -> int:
        return self.images // self.batch_size

    def __iter__(self) -> Iterator[Step]:
        first, self.first = self.first, 0  # with the first step: torch makes two iterators of it, and uses one
        for batch in range(first, len(self)):
            yield Step(self.epoch, batch)


class StreamReader(Dataset[Batch]):
    """Whole batches of one process. Batch b comes from lane b modulo workers, of which this process has as many.

    That is also how torch deals out the steps of an epoch, so a worker reads one lane from its start to its end; or,
    when an epoch begins in its middle, passes over the samples of the batches before, without decoding them. A sample
    that cannot be decoded does not make others move up, or one would have to know of it for that: another one that
    waits in the worker takes its place, and comes a second time later.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        share: int,
        seed: int,
        shuffle: int,
        rank: int,
        world: int,
        prior: bool,
        skipped: Path | None,
    ) -> None:
        self.stream, self.share, self.seed, self.shuffle = stream, share, seed, shuffle
        self.rank, self.world, self.prior, self.skipped = rank, world, prior, skipped
        self.lane: Lane | None = None
        self.next: Step | None = None
        self.noted: set[str] = set()

    def __getitem__(self, step: Step) -> Batch:
        info = get_worker_info()
        workers = info.num_workers if info is not None else 1
        if self.lane is None or step != self.next:
            self.lane = self._lane(step, workers)
        self.next = Step(step.epoch, step.batch + workers)
        with quiet():
            found = self._full([self._read(sample) for sample in islice(self.lane, self.share)], self.lane, step)
        rows, reads = zip(*found, strict=True)
        return Batch(
            images=to_tensor(np.stack([one.pixels for one in reads])),
            target=torch.tensor([one.target for one in reads]),
            row=torch.tensor(rows),
            prior=torch.from_numpy(np.stack([one.prior for one in reads])) if self.prior else None,
        )

    def _lane(self, step: Step, workers: int) -> Lane:
        number = self.rank * workers + step.batch % workers
        lane = Lane(
            self.stream.urls,
            seed=self.seed,
            epoch=step.epoch,
            number=number,
            of=self.world * workers,
            shuffle=self.shuffle,
            note=self._note,
        )
        for _ in islice(lane, step.batch // workers * self.share):
            pass
        return lane

    def _full(self, found: list[tuple[int, Read] | None], lane: Lane, step: Step) -> list[tuple[int, Read]]:
        """The batch with others in the place of what could not be read."""
        good = [one for one in found if one is not None]
        if len(good) == self.share:
            return good
        draws = np.random.default_rng([self.seed, step.epoch, step.batch, self.rank, 2])
        spare = (self._read(lane.waiting[at]) for at in draws.permutation(len(lane.waiting)))
        good += islice((one for one in spare if one is not None), self.share - len(good))
        if not good:
            raise BrokenShard(
                f"none of {self.share + len(lane.waiting)} images in a row could be read (see skipped.txt): leave out"
                " the shards that they are in, or raise --shuffle"
            )
        return [good[i % len(good)] for i in range(self.share)]  # twice in one batch, if there is nothing else

    def _read(self, sample: Sample) -> tuple[int, Read] | None:
        try:
            return sample.row, self.stream.read(sample, prior=self.prior)
        except Exception as error:  # PIL's plugins raise almost anything on a broken file
            self._note(why_skipped(sample, error))
            return None

    def _note(self, one: Skipped) -> None:
        """Into the run's skipped.txt, once: a whole line at the end of it, whoever else is writing."""
        if self.skipped is None:
            return
        if not self.noted and self.skipped.exists():
            self.noted.update(self.skipped.read_text(encoding="utf-8").splitlines())
        line = one.line()
        if line not in self.noted:
            self.noted.add(line)
            try:
                with writing(self.skipped, GO_ON), open(self.skipped, "ab") as file:
                    file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
            except OSError as error:
                raise WorkerError(str(error)) from None


def workers_of(stream: Stream, workers: int, world: int) -> int:
    """As many workers as were asked for, or as there are shards for; an error where a process would have none."""
    shards = len(stream.urls)
    if shards < world:
        raise ValueError(
            f"{shards} shards cannot be shared by {world} processes: write more and smaller ones"
            " (glf shard --per-shard), or use fewer devices"
        )
    return min(workers, shards // world)


def stream_loader(
    reader: StreamReader, steps: StreamSteps, *, workers: int = 0, pin: bool = False
) -> DataLoader[Batch]:
    """Batches of raw pixels, with the prior's rows where they are asked for. (See ``loader`` for how many wait.)"""
    ahead = max(1, min(4, room() // max(1, workers * reader.share * reader.stream.form.nbytes)))
    return DataLoader(
        reader,
        sampler=steps,
        batch_size=None,
        num_workers=workers,
        pin_memory=pin,
        persistent_workers=workers > 0,
        prefetch_factor=ahead if workers else None,
        worker_init_fn=deaf if workers else None,
    )
