"""What is seen of a run while it trains: a bar where there is a terminal or a notebook, a line per epoch everywhere."""

from typing import Any

import lightning as L
import torch
from rich.progress import BarColumn, Progress, TextColumn

from glf.train.callbacks import Clock, Journal, Probe
from glf.train.timing import Remaining, spoken

SAID_AFTER = 10  # steps, from which the time of a run can be told
WORTH_SAYING = 60  # seconds that it takes at least


class Bar(L.Callback):
    """Steps of the whole run, images per second, and the time that is left of all its epochs."""

    def __init__(self, journal: Journal, clock: Clock, probe: Probe) -> None:
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
            self.journal(f"time      about {spoken(seconds)} to go, by the first {SAID_AFTER} steps")

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
        note = f"{speed['images_per_second']:,.0f} images/s  waiting {speed['waiting']:.1%}"
        return f"{note}  {self.remaining}".rstrip()


def _epoch(trainer: L.Trainer) -> str:
    return f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
