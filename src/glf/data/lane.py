"""The samples of one consumer in the order in which an epoch takes them: a function of seed, epoch and its number."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np

from glf.data.samples import BrokenShard, Sample, read_samples
from glf.data.store import Skipped
from glf.printable import printable


class Lane(Iterator[Sample]):
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
