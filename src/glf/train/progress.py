"""Progress of a run: a bar in a terminal or notebook, a line per epoch everywhere, and the remaining time."""

import time
from typing import Any

import lightning as L
import torch
from rich.progress import BarColumn, TextColumn

from glf.train.callbacks import Probe, RunLog, Throughput
from glf.ui import progress

STEPS_TIMED = 10  # steps after which the time of a run can be estimated
WORTH_SAYING = 60  # seconds
UNSAID = ("val/full_rank", "val/mass/")  # for the doctor and the report: the line of an epoch should fit a screen


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(8), format_duration(100), format_duration(1200), format_duration(8000), format_duration(200_000)
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
    """Remaining time of a run, from the steps of this process; probes and checkpoints count as part of them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.first = self.done = 0
        self.began = self.now = 0.0

    def step(self, done: int) -> None:
        """Record that ``done`` steps of the run are done. The first of this process is slower and does not count."""
        self.now = time.perf_counter()
        if not self.first:
            self.first, self.began = done, self.now
        self.done = done

    @property
    def seconds(self) -> float | None:
        """Estimated seconds, or None before the second step."""
        passed = self.done - self.first
        return (self.now - self.began) / passed * (self.total - self.done) if passed > 0 else None

    def __str__(self) -> str:
        return f"{format_duration(self.seconds)} left" if self.seconds else ""


class ProgressBar(L.Callback):
    """Steps of the whole run, images per second, data wait, remaining time."""

    def __init__(self, log: RunLog, throughput: Throughput, probe: Probe) -> None:
        self.log_line, self.throughput, self.probe = log, throughput, probe
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self.bar = progress(*columns, console=log.console)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        total = int(trainer.num_training_batches) * (trainer.max_epochs or 1)
        self.remaining = Remaining(total)
        self.task = self.bar.add_task("training", total=total, completed=trainer.global_step, note="")
        if trainer.is_global_zero:
            self.bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        remaining = self.remaining
        remaining.step(trainer.global_step)
        self.bar.update(self.task, completed=trainer.global_step, note=self._note(), description=_epoch(trainer))
        seconds = remaining.seconds or 0.0
        if remaining.done - remaining.first == STEPS_TIMED and seconds > WORTH_SAYING and trainer.is_global_zero:
            self.log_line(f"time      about {format_duration(seconds)}, estimated from the first {STEPS_TIMED} steps")

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            loss = float(trainer.callback_metrics.get("loss", torch.nan))
            values = {name: value for name, value in sorted(self.probe.latest.items()) if not name.startswith(UNSAID)}
            probe = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.log_line(f"{_epoch(trainer)}  loss {loss:.4f}  {probe}  {self._note()}")

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.bar.stop()

    def _note(self) -> str:
        speed = self.throughput.speed
        note = f"{speed['images_per_second']:,.0f} images/s  data wait {speed['data_wait']:.1%}"
        return f"{note}  {self.remaining}".rstrip()


def _epoch(trainer: L.Trainer) -> str:
    return f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
