"""Checkpoints: when they are written, and how a signal stops a run."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from glf.data.batches import BatchLoader
from glf.runfiles import BEST, EPOCHS, LAST
from glf.train.callbacks import Probe
from glf.train.module import Pretraining
from glf.train.monitor import HealthMonitor

SIGNALS = (signal.SIGTERM, signal.SIGINT)  # a batch system's, and Ctrl-C


GRACE = 3.0  # seconds that a run told to stop still waits for its data


class StopRun(BaseException):
    """A signal asked to stop the run; its state is saved. No Exception: a reader would take it for a bad file."""

    def __init__(self, number: int, step: int, *, saved: bool = True) -> None:
        when = f"after step {step}, which is saved" if saved else "while waiting for data"
        super().__init__(f"stopped by {signal.Signals(number).name} {when}")
        self.signal = number


class Checkpoints(L.Callback):
    """Writes ``last.ckpt`` every epoch, every ``minutes``, and on SIGTERM and SIGINT.

    Also ``best.ckpt`` by probe accuracy (labelled data only), and a permanent checkpoint every ``every`` epochs.
    """

    def __init__(
        self, directory: Path, probe: Probe, monitor: HealthMonitor, *, minutes: float, every: int | None, keep: int
    ) -> None:
        self.directory, self.probe, self.monitor = directory, probe, monitor
        self.minutes, self.every, self.keep = minutes, every, keep
        self.best = float("-inf")
        self.received = 0  # the signal, if one came
        self.saved = time.monotonic()
        self.saved_step = 0
        self.trainer: L.Trainer | None = None  # while it trains

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.saved, self.saved_step, self.trainer = time.monotonic(), trainer.global_step, trainer
        if trainer.received_sigterm:  # Lightning listens from a little earlier
            self.received = signal.SIGTERM
            self._set_alarm()
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
            for number in SIGNALS:
                signal.signal(number, self._on_signal)  # Lightning restores the previous handlers after training

    def _on_signal(self, number: int, frame: Any) -> None:
        """Only record the signal: the state is consistent between steps. A second signal ends the process at once."""
        self.received = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        self._set_alarm()

    def _set_alarm(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and hasattr(signal, "setitimer"):  # not on Windows
            signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, GRACE, 1.0)

    def _on_alarm(self, number: int, frame: Any) -> None:
        """Stop a run that waits for data, which may never come. The state is consistent: it is between two steps."""
        trainer = self.trainer
        loader = None if trainer is None else trainer.train_dataloader
        if trainer is None or not isinstance(loader, BatchLoader) or not loader.waiting:
            return
        loader.waiting = False  # once
        if trainer.world_size == 1 and trainer.global_step > self.saved_step:
            self.monitor.check_before_saving(trainer, trainer.lightning_module)
            self._save(trainer)
        raise StopRun(self.received, trainer.global_step, saved=0 < self.saved_step == trainer.global_step)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._end_alarm()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self._end_alarm()

    def _end_alarm(self) -> None:
        self.trainer = None
        if self.received and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        if batch_idx + 1 == module.steps_per_epoch:  # the epoch's checkpoint follows
            return
        if trainer.world_size > 1 and not module.metrics:  # agreeing costs a collective: at logged steps only
            return
        due = time.monotonic() - self.saved >= 60 * self.minutes
        received, due = self._agree(trainer, module, due)
        if received or due:
            self.monitor.check_before_saving(trainer, module)  # lost weights must not overwrite the last good ones
            self._save(trainer)
        if received:
            raise StopRun(received, trainer.global_step)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        score = self.probe.latest.get("val/knn", float("-inf"))
        better = score > self.best
        self.best = max(self.best, score)
        if better:
            trainer.save_checkpoint(self.directory / BEST.name)
        epoch = trainer.current_epoch + 1
        if self.every and epoch % self.every == 0:
            trainer.save_checkpoint(self.directory / f"epoch-{epoch:05d}.ckpt")
            if trainer.is_global_zero:
                for old in sorted(self.directory.glob(EPOCHS))[: -self.keep]:
                    old.unlink()
        self._save(trainer)  # last: after a kill before this, the others are written again
        received, _ = self._agree(trainer, module, False)
        if received and epoch != trainer.max_epochs:  # the rest of a finished run takes no time
            raise StopRun(received, trainer.global_step)

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self.directory / LAST.name)
        self.saved, self.saved_step = time.monotonic(), trainer.global_step

    def _agree(self, trainer: L.Trainer, module: L.LightningModule, due: bool) -> tuple[int, bool]:
        """Combine all processes: the signal that any received, and whether any is due. All of them save, or none."""
        if trainer.world_size == 1:
            return self.received, due
        own = torch.tensor([self.received, due], device=module.device)
        number, late = trainer.strategy.reduce(own, reduce_op="max").tolist()
        return int(number), bool(late)
