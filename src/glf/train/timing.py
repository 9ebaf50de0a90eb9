"""How long a run will take: by a few real steps before it begins, and by its own steps from then on."""

import copy
import time
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import lightning as L

from glf.config import Settled
from glf.heap import kept_memory
from glf.train.callbacks import Probe
from glf.train.choices import Choice
from glf.train.module import Pretraining
from glf.train.trainer import accelerator, fit, make_trainer

REHEARSED = 5  # steps, the first of which is slower and does not count
BUDGET = {"cpu": 20 * 60, "mps": 60 * 60, "gpu": 4 * 60 * 60}  # seconds that a run may take unless asked for more
STEPS = 10_000  # what a run is given where time allows, within the two bounds
FEWEST, MOST = 10, 200  # epochs


class Pace(NamedTuple):
    """Seconds of a step and of the probe after an epoch, and how many steps that is known by."""

    step: float
    probe: float
    steps: int

    def epoch(self, steps: int) -> float:
        return steps * self.step + self.probe


class _Stopwatch(L.Callback):
    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.ends: list[float] = []
        self.of_probe = 0.0

    def on_train_batch_end(self, *_: Any) -> None:
        self.ends.append(time.perf_counter())

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:  # while it is on its device
        assert isinstance(module, Pretraining)
        self.of_probe = self.probe.seconds(module) / self.probe.every


def rehearse(config: Settled, module: Pretraining, probe: Probe) -> Pace:
    """Real steps of a copy of the network, which is thrown away: data, views, objective, optimiser and all."""
    watch = _Stopwatch(probe)
    trainer = make_trainer(replace(config, epochs=REHEARSED), [watch], steps=REHEARSED)
    with kept_memory(accelerator(config.device) == "cpu"):  # as in the run itself
        fit(trainer, copy.deepcopy(module))
    steps = [after - before for before, after in zip(watch.ends, watch.ends[1:], strict=False)]
    return Pace(median(steps), watch.of_probe, len(steps))


def epochs(steps: int, pace: Pace | None, accelerator: str) -> Choice:
    """As many as some ten thousand steps take, but no more than the time allows; one at least.

    >>> print(epochs(39, Pace(step=1.0, probe=1.0, steps=4), "cpu"))
    chosen    --epochs 30: what 20 min allow on this cpu; 200 would take 2 h 13 min
    """
    wanted = min(MOST, max(FEWEST, round(STEPS / steps)))
    if pace is None:
        return Choice("epochs", wanted, f"{wanted * steps:,} steps")
    budget, one = BUDGET[accelerator], pace.epoch(steps)
    allowed = max(1, int(budget / one))
    if allowed >= wanted:
        return Choice("epochs", wanted, f"{wanted * steps:,} steps, and time for them")
    longer = f"{wanted} would take {spoken(wanted * one)}"
    if one > budget:
        return Choice("epochs", 1, f"a single one takes longer than {spoken(budget)} on this {accelerator}; {longer}")
    return Choice("epochs", allowed, f"what {spoken(budget)} allow on this {accelerator}; {longer}")


def estimate(epochs: int, steps: int, pace: Pace) -> str:
    """The time before a run, and how it is known."""
    measured = f"{pace.steps} steps of {pace.step:.2g} s each, timed just now, and {pace.probe:.2g} s for the probe"
    passes = f"{epochs} epoch{'s' * (epochs > 1)} of {steps} step{'s' * (steps > 1)}"
    return f"time      about {spoken(epochs * pace.epoch(steps))} for {passes} ({measured})"


def spoken(seconds: float) -> str:
    """A length of time as one says it.

    >>> spoken(8), spoken(100), spoken(1200), spoken(8000), spoken(200_000)
    ('8 s', '2 min', '20 min', '2 h 13 min', '2 days 7 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} days {minutes % 1440 // 60} h"


class Remaining:
    """What is left of a run, by the steps that this process has taken; probes and checkpoints are part of them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.first = self.done = 0
        self.began = self.now = 0.0

    def step(self, done: int) -> None:
        """So many steps of the run are done. The first of this process is slower than others, and does not count."""
        self.now = time.perf_counter()
        if not self.first:
            self.first, self.began = done, self.now
        self.done = done

    @property
    def seconds(self) -> float | None:
        """None before anything is known."""
        passed = self.done - self.first
        return (self.now - self.began) / passed * (self.total - self.done) if passed > 0 else None

    def __str__(self) -> str:
        return f"{spoken(self.seconds)} left" if self.seconds else ""
