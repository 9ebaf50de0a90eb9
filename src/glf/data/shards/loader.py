"""Batches from shards: assignment of shards to workers, shuffling, and exact resuming within an epoch.

Every batch is a function of seed, epoch, number of processes and number of workers. A stream that starts at batch k of
an epoch gives the same batches as an uninterrupted one.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from glf.data.batches import to_tensor, whole_batch_loader
from glf.data.decode import quiet
from glf.data.images import WorkerError
from glf.data.shards.read import BrokenShard, DecodedSample, ShardSample, ShardStream, read_samples, skipped_sample
from glf.data.source import Skipped
from glf.files import RESUME_ADVICE, explain_full_disk, printable
from glf.types import Batch


class WorkerSampleStream(Iterator[ShardSample]):
    """Endless, shuffled samples of one worker: a function of seed, epoch and worker number.

    In each pass over the data, a permutation of all shards is dealt out to the workers. A worker keeps a buffer of
    ``shuffle`` samples; for each sample it reads, it yields a random one from the buffer. Every sample of a pass is
    yielded once before the first sample of the next pass.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        seed: int,
        epoch: int,
        worker: int,
        workers: int,
        shuffle: int,
        on_skip: Callable[[Skipped], None],
    ) -> None:
        self.urls, self.seed, self.epoch, self.worker, self.workers = urls, seed, epoch, worker, workers
        self.shuffle, self.on_skip = shuffle, on_skip
        self.buffer: list[ShardSample] = []
        self._shuffled = self._shuffle()

    def __next__(self) -> ShardSample:
        return next(self._shuffled)

    def shards(self, turn: int) -> list[int]:
        """Numbers of this worker's shards in a pass; each shard goes to exactly one of all workers."""
        order = np.random.default_rng([self.seed, self.epoch, turn, 0]).permutation(len(self.urls))
        dealt: list[int] = order[self.worker :: self.workers].tolist()
        return dealt

    def _shuffle(self) -> Iterator[ShardSample]:
        rng = np.random.default_rng([self.seed, self.epoch, self.worker, 1])
        buffer = self.buffer

        def pop_random() -> ShardSample:
            i = int(rng.integers(len(buffer)))
            buffer[i], buffer[-1] = buffer[-1], buffer[i]
            return buffer.pop()

        for turn in count():
            for sample in self._read(turn):
                buffer.append(sample)
                if len(buffer) > self.shuffle:
                    yield pop_random()
            while buffer:
                yield pop_random()

    def _read(self, turn: int) -> Iterator[ShardSample]:
        images, url = 0, ""
        for number in self.shards(turn):
            url = self.urls[number]
            for sample in read_samples(url, number):
                if isinstance(sample, Skipped):
                    self.on_skip(sample)
                    continue
                images += 1
                yield sample
        if not images:
            raise BrokenShard(f"no images in any of the shards of one worker, the last of them {printable(url)}")


class BatchRequest(NamedTuple):
    """Tells a worker which batch to load."""

    epoch: int
    batch: int


class StreamSampler(Sampler[BatchRequest]):
    """The batch requests of one epoch; every process has the same number of batches."""

    def __init__(self, images: int, batch_size: int) -> None:
        if batch_size > images:
            raise ValueError(f"a batch of {batch_size} is larger than an epoch of {images} images")
        self.images, self.batch_size = images, batch_size
        self.epoch = self.first = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning at the start of every epoch."""
        self.epoch = epoch

    def begin(self, epoch: int, batch: int) -> None:
        """Start the next iteration at this batch of this epoch; later epochs start at their first batch."""
        if not 0 <= batch <= len(self):
            raise ValueError(f"an epoch of {len(self)} batches cannot start at batch {batch}")
        self.epoch, self.first = epoch, batch

    def __len__(self) -> int:
        return self.images // self.batch_size

    def __iter__(self) -> Iterator[BatchRequest]:
        # A generator: this runs at the first request. torch creates two iterators and uses one of them.
        first, self.first = self.first, 0
        for batch in range(first, len(self)):
            yield BatchRequest(self.epoch, batch)


class StreamDataset(Dataset[Batch]):
    """Whole batches of one process. Batch b is loaded by worker b modulo the number of workers.

    torch deals out the requests of an epoch in the same way, so a worker reads one sample stream from start to end.
    When an epoch starts in the middle, a worker skips the samples of earlier batches without decoding them. An
    undecodable sample is replaced by another one from the shuffle buffer (which is then seen twice), so later batches
    are unchanged and resuming stays exact.
    """

    def __init__(
        self,
        stream: ShardStream,
        *,
        batch_size: int,  # of this process
        seed: int,
        shuffle: int,
        rank: int,
        world: int,
        prior: bool,
        skipped_file: Path | None,
    ) -> None:
        self.stream, self.batch_size, self.seed, self.shuffle = stream, batch_size, seed, shuffle
        self.rank, self.world, self.prior, self.skipped_file = rank, world, prior, skipped_file
        self.samples: WorkerSampleStream | None = None
        self.expected: BatchRequest | None = None  # the request that continues the current sample stream
        self.noted: set[str] = set()

    def __getitem__(self, request: BatchRequest) -> Batch:
        info = get_worker_info()
        workers = info.num_workers if info is not None else 1
        if self.samples is None or request != self.expected:
            self.samples = self._start(request, workers)
        self.expected = BatchRequest(request.epoch, request.batch + workers)
        with quiet():
            decoded = [self._decode(sample) for sample in islice(self.samples, self.batch_size)]
            numbers, samples = zip(*self._filled(decoded, self.samples, request), strict=True)
        return Batch(
            images=to_tensor(np.stack([sample.pixels for sample in samples])),
            target=torch.tensor([sample.target for sample in samples]),
            indices=torch.tensor(numbers),
            prior=torch.from_numpy(np.stack([sample.prior for sample in samples])) if self.prior else None,
        )

    def _start(self, request: BatchRequest, workers: int) -> WorkerSampleStream:
        """The sample stream that loads this batch, advanced to its first sample."""
        samples = WorkerSampleStream(
            self.stream.urls,
            seed=self.seed,
            epoch=request.epoch,
            worker=self.rank * workers + request.batch % workers,
            workers=self.world * workers,
            shuffle=self.shuffle,
            on_skip=self._note,
        )
        for _ in islice(samples, request.batch // workers * self.batch_size):
            pass
        return samples

    def _decode(self, sample: ShardSample) -> tuple[int, DecodedSample] | None:
        try:
            return sample.number, self.stream.decode(sample, prior=self.prior)
        except Exception as error:  # PIL's plugins raise almost anything on a broken file
            self._note(skipped_sample(sample, error))
            return None

    def _filled(
        self, decoded: list[tuple[int, DecodedSample] | None], samples: WorkerSampleStream, request: BatchRequest
    ) -> list[tuple[int, DecodedSample]]:
        """The batch with undecodable samples replaced by others from the shuffle buffer."""
        good = [one for one in decoded if one is not None]
        if len(good) == self.batch_size:
            return good
        rng = np.random.default_rng([self.seed, request.epoch, request.batch, self.rank, 2])
        spare = (self._decode(samples.buffer[i]) for i in rng.permutation(len(samples.buffer)))
        good += islice((one for one in spare if one is not None), self.batch_size - len(good))
        if not good:
            raise BrokenShard(
                f"none of {self.batch_size + len(samples.buffer)} consecutive images could be decoded (see"
                " skipped.txt): leave out their shards, or raise --shuffle"
            )
        return [good[i % len(good)] for i in range(self.batch_size)]  # repeated within the batch as a last resort

    def _note(self, skipped: Skipped) -> None:
        """Append a line to the run's skipped.txt unless it is there; one write, because other workers append too."""
        if self.skipped_file is None:
            return
        if not self.noted and self.skipped_file.exists():
            self.noted.update(self.skipped_file.read_text(encoding="utf-8").splitlines())
        line = skipped.line()
        if line not in self.noted:
            self.noted.add(line)
            try:
                with explain_full_disk(self.skipped_file, RESUME_ADVICE), open(self.skipped_file, "ab") as file:
                    file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
            except OSError as error:
                raise WorkerError(str(error)) from None


def usable_workers(stream: ShardStream, workers: int, world: int) -> int:
    """The number of workers per process, lowered so that each has at least one shard."""
    shards = len(stream.urls)
    if shards < world:
        raise ValueError(
            f"{shards} shards are too few for {world} processes: write more and smaller ones (glf shard --per-shard),"
            " or use fewer devices"
        )
    return min(workers, shards // world)


def stream_dataloader(
    dataset: StreamDataset, sampler: StreamSampler, *, workers: int = 0, pin: bool = False
) -> DataLoader[Batch]:
    """Batches of raw pixels, with prior features if the dataset reads them."""
    batch_bytes = dataset.batch_size * dataset.stream.size.nbytes
    return whole_batch_loader(dataset, sampler, batch_bytes=batch_bytes, workers=workers, pin=pin)
