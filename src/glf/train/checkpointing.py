"""When a run is saved, and how a signal stops it."""
# MERGED DOCS:
# | """A run goes on with the images that it began with, and all of its processes have the same ones."""

import signal
import threading
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch

from glf.distributed import same_everywhere
from glf.train.callbacks import Probe, RunLog
from glf.train.inputs import Feed
from glf.train.module import Pretraining
from glf.train.monitor import HealthMonitor

SIGNALS = (signal.SIGTERM, signal.SIGINT)  # a batch system's, and Ctrl-C


class StopRun(Exception):  # noqa: N818 (named after what it asks for)
    """A signal has asked for the end of a run, whose state is saved."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}, which is saved")
        self.signal = number


class Stopped(KeyboardInterrupt):
    """A signal has stopped a run, whose state is saved: says how to go on."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


class Checkpoints(L.Callback):
    """last after every epoch, every so many minutes, and when a signal stops the run.

    Beside it best, by the probe where there are labels, and every so many epochs one to keep.
    """

    def __init__(
        self, directory: Path, probe: Probe, doctor: HealthMonitor, *, minutes: float, every: int | None, keep: int
    ) -> None:
        self.directory, self.probe, self.doctor = directory, probe, doctor
        self.minutes, self.every, self.keep = minutes, every, keep
        self.best = float("-inf")
        self.asked = 0  # the signal that came, if one has
        self.saved = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.saved = time.monotonic()
        if trainer.received_sigterm:  # by Lightning, which listens from a little before
            self.asked = signal.SIGTERM
        if threading.current_thread() is threading.main_thread():  # nobody else may
            for number in SIGNALS:
                signal.signal(number, self._hear)  # Lightning puts the former ones back after training

    def _hear(self, number: int, frame: Any) -> None:
        """Only notes it: the state is whole between steps. A second signal of the kind ends the process at once."""
        self.asked = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        if batch_idx + 1 == module.steps_per_epoch:  # the checkpoint of the epoch follows
            return
        if trainer.world_size > 1 and not module.metrics:  # to agree costs a round: at logged steps only
            return
        due = time.monotonic() - self.saved >= 60 * self.minutes
        asked, due = self._agreed(trainer, module, due)
        if asked or due:
            self.doctor.before_saving(trainer, module)  # lost weights do not replace the last good ones
            self._save(trainer)
        if asked:
            raise StopRun(asked, trainer.global_step)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        score = self.probe.latest.get("val/knn", float("-inf"))
        better = score > self.best
        self.best = max(self.best, score)
        if better:
            trainer.save_checkpoint(self.directory / "best.ckpt")
        epoch = trainer.current_epoch + 1
        if self.every and epoch % self.every == 0:
            trainer.save_checkpoint(self.directory / f"epoch-{epoch:05d}.ckpt")
            if trainer.is_global_zero:
                for old in sorted(self.directory.glob("epoch-*.ckpt"))[: -self.keep]:
                    old.unlink()
        self._save(trainer)  # the last: after a kill before it, the others are written again
        asked, _ = self._agreed(trainer, module, False)
        if asked and epoch != trainer.max_epochs:  # what is left of a finished run takes no time
            raise StopRun(asked, trainer.global_step)

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self.directory / "last.ckpt")
        self.saved = time.monotonic()

    def _agreed(self, trainer: L.Trainer, module: L.LightningModule, due: bool) -> tuple[int, bool]:
        """What any of the processes has heard, and whether any thinks it time: all of them save, or none does."""
        if trainer.world_size == 1:
            return self.asked, due
        heard = torch.tensor([self.asked, due], device=module.device)
        number, late = trainer.strategy.reduce(heard, reduce_op="max").tolist()
        return int(number), bool(late)


class DataFingerprint(L.Callback):
    """Rows, and the position in an epoch, mean nothing among other images: a run is refused where their number differs.

    Where only their key does, which copying files changes as well, it is said.
    """

    def __init__(self, data: Feed, journal: RunLog) -> None:
        self.images, self.train, self.key, self.journal = data.total, data.count, data.key, journal

    def state_dict(self) -> dict[str, Any]:
        return {"images": self.images, "train": self.train, "key": self.key}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if (self.images, self.train) != (state_dict["images"], state_dict["train"]):
            raise ValueError(
                f"the run began with {state_dict['images']:,} images, {state_dict['train']:,} of them to train on, and"
                f" now there are {self.images:,} and {self.train:,}: put the data back as they were (skipped.txt has"
                " what cannot be read), or start anew with --overwrite"
            )
        if self.key != state_dict["key"]:
            self.journal("data      not the files that the run began with: copied since, or changed", "yellow")

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not same_everywhere(self.images, self.train, device=module.device):
            raise ValueError(
                f"the processes do not see the same images, this one {self.images:,}: data lie on a disk that all nodes"
                " see, or in equal copies, and nothing is added to them meanwhile"
            )
