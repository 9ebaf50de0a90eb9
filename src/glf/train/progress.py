"""How long a run will take: by a few real steps before it begins, and by its own steps from then on."""
# MERGED DOCS:
# | """What is seen of a run while it trains: a bar where there is a terminal or a notebook, a line per epoch everywhere."""

import copy
import time
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import lightning as L
import torch
from rich.progress import BarColumn, Progress, TextColumn

from glf.config.training import ResolvedPretrainConfig
from glf.device import accelerator
from glf.malloc import retain_freed_memory
from glf.train.auto_config import Choice
from glf.train.callbacks import Probe, RunLog, Throughput
from glf.train.module import Pretraining
from glf.train.trainer import fit, make_trainer

REHEARSED = 5  # steps, the first of which is slower and does not count
BUDGET = {"cpu": 20 * 60, "mps": 60 * 60, "gpu": 4 * 60 * 60}  # seconds that a run may take unless asked for more
STEPS = 10_000  # what a run is given where time allows, within the two bounds
FEWEST, MOST = 10, 200  # epochs


class StepTime(NamedTuple):
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


def benchmark_steps(config: ResolvedPretrainConfig, module: Pretraining, probe: Probe) -> StepTime:
    """Real steps of a copy of the network, which is thrown away: data, views, objective, optimiser and all."""
    watch = _Stopwatch(probe)
    trainer = make_trainer(replace(config, epochs=REHEARSED), [watch], steps=REHEARSED)
    with retain_freed_memory(accelerator(config.device) == "cpu"):  # as in the run itself
        fit(trainer, copy.deepcopy(module))
    steps = [after - before for before, after in zip(watch.ends, watch.ends[1:], strict=False)]
    return StepTime(median(steps), watch.of_probe, len(steps))


def epochs(steps: int, pace: StepTime | None, accelerator: str) -> Choice:
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
    longer = f"{wanted} would take {format_duration(wanted * one)}"
    if one > budget:
        return Choice(
            "epochs", 1, f"a single one takes longer than {format_duration(budget)} on this {accelerator}; {longer}"
        )
    return Choice("epochs", allowed, f"what {format_duration(budget)} allow on this {accelerator}; {longer}")


def estimate(epochs: int, steps: int, pace: StepTime) -> str:
    """The time before a run, and how it is known."""
    measured = f"{pace.steps} steps of {pace.step:.2g} s each, timed just now, and {pace.probe:.2g} s for the probe"
    passes = f"{epochs} epoch{'s' * (epochs > 1)} of {steps} step{'s' * (steps > 1)}"
    return f"time      about {format_duration(epochs * pace.epoch(steps))} for {passes} ({measured})"


def format_duration(seconds: float) -> str:
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
        return f"{format_duration(self.seconds)} left" if self.seconds else ""


SAID_AFTER = 10  # steps, from which the time of a run can be told
WORTH_SAYING = 60  # seconds that it takes at least


class Bar(L.Callback):
    """Steps of the whole run, images per second, and the time that is left of all its epochs."""

    def __init__(self, journal: RunLog, clock: Throughput, probe: Probe) -> None:
        self.journal, self.clock, self.probe = journal, clock, probe
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self.progress = Progress(*columns, console=journal.console, transient=True)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        total = int(trainer.num_training_batches) * (trainer.max_epochs or 1)
        self.remaining = Remaining(total)
        self.task = self.progress.add_task("training", total=total, completed=trainer.global_step, note="")
        if trainer.is_global_zero:
            self.progress.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        remaining = self.remaining
        remaining.step(trainer.global_step)
        self.progress.update(self.task, completed=trainer.global_step, note=self._note(), description=_epoch(trainer))
        seconds = remaining.seconds or 0.0
        if remaining.done - remaining.first == SAID_AFTER and seconds > WORTH_SAYING and trainer.is_global_zero:
            self.journal(f"time      about {format_duration(seconds)} to go, by the first {SAID_AFTER} steps")

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            loss = float(trainer.callback_metrics.get("loss", torch.nan))
            found = "  ".join(f"{name} {value:.4g}" for name, value in sorted(self.probe.latest.items()))
            self.journal(f"{_epoch(trainer)}  loss {loss:.4f}  {found}  {self._note()}")

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.progress.stop()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.progress.stop()

    def _note(self) -> str:
        speed = self.clock.speed
        note = f"{speed['images_per_second']:,.0f} images/s  waiting {speed['data_wait']:.1%}"
        return f"{note}  {self.remaining}".rstrip()


def _epoch(trainer: L.Trainer) -> str:
    return f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
