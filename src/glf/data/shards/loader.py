"""The samples of one consumer in the order in which an epoch takes them: a function of seed, epoch and its number."""
# MERGED DOCS:
# | """Batches of a stream: which worker reads which, and how the epoch is gone on with in its middle."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from glf.data.batches import ignore_signals, room, to_tensor
from glf.data.decode import quiet
from glf.data.images import Skipped, WorkerError
from glf.data.shards.read import BrokenShard, Sample, read_samples
from glf.data.shards.stream import Read, ShardStream, why_skipped
from glf.files import RESUME_ADVICE, explain_full_disk, printable
from glf.types import Batch


class WorkerSampleStream(Iterator[Sample]):
    """Never ends: when the shards of a pass have been read, another permutation of all of them is dealt out.

    A sample waits among ``shuffle`` others, of which one is drawn whenever the next is read. Every sample of a pass
    comes once before the first one of the next pass.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        seed: int,
        epoch: int,
        number: int,
        of: int,
        shuffle: int,
        note: Callable[[Skipped], None],
    ) -> None:
        self.urls, self.seed, self.epoch, self.number, self.of = urls, seed, epoch, number, of
        self.shuffle, self.note = shuffle, note
        self.waiting: list[Sample] = []
        self._mixed = self._mix()

    def __next__(self) -> Sample:
        return next(self._mixed)

    def shards(self, turn: int) -> list[int]:
        """The shards of this consumer in a pass; all consumers together have each of them once."""
        order = np.random.default_rng([self.seed, self.epoch, turn, 0]).permutation(len(self.urls))
        dealt: list[int] = order[self.number :: self.of].tolist()
        return dealt

    def _mix(self) -> Iterator[Sample]:
        draws = np.random.default_rng([self.seed, self.epoch, self.number, 1])
        waiting = self.waiting
        for turn in count():
            for sample in self._read(turn):
                waiting.append(sample)
                if len(waiting) > self.shuffle:
                    yield _taken(waiting, draws)
            while waiting:
                yield _taken(waiting, draws)

    def _read(self, turn: int) -> Iterator[Sample]:
        found, last = 0, ""
        for number in self.shards(turn):
            last = self.urls[number]
            for sample in read_samples(last, number):
                if isinstance(sample, Skipped):
                    self.note(sample)
                    continue
                found += 1
                yield sample
        if not found:
            raise BrokenShard(f"no images in any of the shards that one worker reads, the last {printable(last)}")


def _taken(waiting: list[Sample], draws: np.random.Generator) -> Sample:
    """One of those that wait; the last one takes its place."""
    at = int(draws.integers(len(waiting)))
    waiting[at], waiting[-1] = waiting[-1], waiting[at]
    return waiting.pop()


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
        stream: ShardStream,
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
        self.lane: WorkerSampleStream | None = None
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
            indices=torch.tensor(rows),
            prior=torch.from_numpy(np.stack([one.prior for one in reads])) if self.prior else None,
        )

    def _lane(self, step: Step, workers: int) -> WorkerSampleStream:
        number = self.rank * workers + step.batch % workers
        lane = WorkerSampleStream(
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

    def _full(
        self, found: list[tuple[int, Read] | None], lane: WorkerSampleStream, step: Step
    ) -> list[tuple[int, Read]]:
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
                with explain_full_disk(self.skipped, RESUME_ADVICE), open(self.skipped, "ab") as file:
                    file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
            except OSError as error:
                raise WorkerError(str(error)) from None


def workers_of(stream: ShardStream, workers: int, world: int) -> int:
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
        worker_init_fn=ignore_signals if workers else None,
    )
