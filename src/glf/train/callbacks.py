"""Lightning callbacks: the log, throughput, metrics.jsonl, the EMA teacher's update, the online probe, clusters."""

import json
import math
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from rich.console import Console

from glf.config.base import to_dict
from glf.config.evaluation import KNN_K, KNN_TEMPERATURE
from glf.data.images import ImageSet
from glf.distributed import launched_rank
from glf.files import RESUME_ADVICE, explain_full_disk, printable
from glf.loggers import Loggers
from glf.measure.geometry import effective_rank, full_rank, spread
from glf.measure.knn import weighted_knn_predict
from glf.measure.ridge import ridge_predict
from glf.nn.features import NotFiniteError, encode
from glf.nn.memory import Clusters
from glf.nn.network import momentum_at
from glf.result import write_file
from glf.train.class_mass import ClassMass
from glf.train.module import Pretraining
from glf.ui import say

SHAPE_IMAGES = 2_000  # enough for rank and spread
FIRST, KEPT = 5, 200  # records kept in memory: the first, as a reference, and the last


class RunLog:
    """Prints the lines of a run on the console and appends them to train.log, once there is one."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.path: Path | None = None
        self.earlier: list[str] = []  # lines printed before the run directory exists

    def __call__(self, text: str, style: str = "") -> None:
        if launched_rank():
            return
        say(self.console, text, style=style)
        if self.path is None:
            self.earlier.append(text)
        else:
            self._append(text)

    def open(self, path: Path) -> None:
        """Append to this file from now on, beginning with the lines printed so far."""
        self.path = path
        if launched_rank() == 0:
            for text in self.earlier:
                self._append(text)

    def _append(self, text: str) -> None:
        assert self.path is not None
        with explain_full_disk(self.path, RESUME_ADVICE), open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {printable(text)}\n")


class Throughput(L.Callback):
    """Images per second, and data wait: the fraction of time spent waiting for data.

    It comes after all other callbacks: their time, and the time they wait for the device, belongs to the step.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.images, self.waited, self.training = 0, 0.0, False
        self.started = self.ended = time.perf_counter()
        self.before = (0, 0.0, self.started)  # at the last call of lap()

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._begin()  # a resumed run may start in the middle of an epoch

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._begin()

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.waited += time.perf_counter() - self.ended
        self.images += len(batch.indices) * trainer.world_size
        self.training = True

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.ended, self.training = time.perf_counter(), False

    @property
    def speed(self) -> dict[str, float]:
        """Throughput of this epoch up to its last step; the probe after it does not count."""
        return self._since(0, 0.0, self.started)

    def lap(self) -> dict[str, float]:
        """Throughput since the previous call, so a slow start does not bias later values."""
        before, self.before = self.before, (self.images, self.waited, self._now())
        return self._since(*before)

    def _now(self) -> float:
        return time.perf_counter() if self.training else self.ended

    def _since(self, images: int, waited: float, moment: float) -> dict[str, float]:
        elapsed = max(self._now() - moment, 1e-9)
        rate, share = (self.images - images) / elapsed, (self.waited - waited) / elapsed
        return {"images_per_second": round(rate, 1), "data_wait": round(share, 4)}


class Metrics(L.Callback):
    """Writes metrics.jsonl, a line per logged step and a line per epoch, and tells the loggers."""

    def __init__(self, path: Path, clock: Throughput, loggers: Loggers) -> None:
        self.path, self.clock, self.loggers = path, clock, loggers
        self.records: list[dict[str, Any]] = []

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(module, Pretraining)
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        whole = [line for line in lines if math.isfinite(_step_of(line))]
        records = [json.loads(line) for line in whole]
        self.loggers.begin(to_dict(module.config), records, trainer.global_step, module.config.resume)
        if lines:
            # A resumed run repeats the steps after its checkpoint: drop their lines.
            kept = [line for line in whole if _step_of(line) <= trainer.global_step]
            write_file(self.path, "".join(line + "\n" for line in kept))
            for line in kept:
                self._remember(json.loads(line))

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        if module.metrics and trainer.is_global_zero:
            values = {name: float(value) for name, value in module.metrics.items()}
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            self.write(trainer, {"lr": lr, **values, **self.clock.lap()})

    def write(self, trainer: L.Trainer, values: dict[str, Any]) -> None:
        line = {"step": trainer.global_step, "epoch": trainer.current_epoch, **values}
        with explain_full_disk(self.path, RESUME_ADVICE), open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")
        self._remember(line)
        self.loggers.log(line)

    def _remember(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if len(self.records) > FIRST + KEPT:
            del self.records[FIRST]


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):  # a line truncated by a kill
        return float("inf")


class UpdateTeacher(L.Callback):
    """Updates the EMA teacher after each step, before any callback reads or saves it."""

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        if module.network.teacher is not None and module.method.ema_momentum is not None:
            progress = module.global_step / (module.config.epochs * module.steps_per_epoch)
            momentum = momentum_at(progress, *module.method.ema_momentum)
            module.network.update_teacher(momentum)


class Probe(L.Callback):
    """Online probe after an epoch: k-NN and linear accuracy on held-out training images, effective rank, spread."""

    def __init__(
        self,
        images: ImageSet,
        bank: np.ndarray,
        val: np.ndarray,
        every: int,
        metrics: Metrics | None,
        mass: ClassMass | None = None,
        log: RunLog | None = None,
    ) -> None:
        self.images, self.bank, self.val, self.every, self.metrics = images, bank, val, every, metrics
        self.mass, self.log_line = mass, log
        self.latest: dict[str, float] = {}

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Before the first step: what the neighbour distributions of ADC know about classes."""
        assert isinstance(module, Pretraining)
        if trainer.global_step or not trainer.is_global_zero or self.metrics is None or self.mass is None:
            return
        found = self.mass.measure(module)
        if found:
            self.metrics.write(trainer, dict(found))
            if self.log_line is not None:
                shown = ", ".join(f"{name.rpartition('/')[2]} {value:.2f}" for name, value in found.items())
                self.log_line(f"classes   share of the same class among neighbours before training: {shown}")

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        last = trainer.current_epoch + 1 == trainer.max_epochs
        self.latest = {}
        if not last and (trainer.current_epoch + 1) % self.every:
            return
        lost = ""
        if trainer.is_global_zero:
            assert isinstance(module, Pretraining)
            try:
                self.latest = record = self.measure(module)
            except NotFiniteError as error:  # finite weights may be so large that features are not
                lost, record = str(error), {"bad/features": trainer.global_step}
            if self.metrics is not None:
                self.metrics.write(trainer, dict(record))
        self.latest, lost = trainer.strategy.broadcast((self.latest, lost))
        if lost:
            raise NotFiniteError(f"stopped at step {trainer.global_step}: {lost}")

    def measure(self, module: Pretraining) -> dict[str, float]:
        """Return val/rank, val/full_rank (its value for isotropic features), val/spread; with labels val/knn (weighted
        k-NN) and val/linear (ridge regression).

        An adaptation adds val/kept, the share of neighbours kept from the frozen encoder; ADC adds val/mass.
        """
        if len(self.val) == 0:  # nothing held out: the features' shape can be measured on training images
            rows = self.bank[:SHAPE_IMAGES]
            features = module.features(self.images, rows)
            return _shape(features) | module.compare_with_start(rows, features)
        bank, val = (module.features(self.images, rows) for rows in (self.bank, self.val))
        result = _shape(val[:SHAPE_IMAGES])
        if self.images.labelled:
            labels, truth = (torch.from_numpy(self.images.targets[rows]) for rows in (self.bank, self.val))
            k = min(KNN_K, len(bank))
            predicted = {
                "val/knn": weighted_knn_predict(bank, labels, val, k, KNN_TEMPERATURE),
                "val/linear": ridge_predict(bank, labels, val),
            }
            result |= {name: round(float((one == truth).float().mean()), 4) for name, one in predicted.items()}
        masses = self.mass.measure(module) if self.mass is not None else {}
        return result | masses | module.compare_with_start(self.bank, bank)


def _shape(features: torch.Tensor) -> dict[str, float]:
    full = round(full_rank(*features.shape), 4)
    return {"val/rank": effective_rank(features), "val/full_rank": full, "val/spread": spread(features)}


class RefreshClusters(L.Callback):
    """Before an epoch: clusters the teacher's outputs of the whole training set, for methods that use clusters.

    The first process clusters and broadcasts: with batch normalisation, the teachers of the processes may differ.
    """

    def __init__(self, images: ImageSet, rows: np.ndarray) -> None:
        self.images, self.rows = images, rows

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, Pretraining)
        epoch = trainer.current_epoch
        for memory in {m for m in module.objective.modules() if isinstance(m, Clusters)}:
            if epoch < memory.warmup_epochs or module.network.teacher is None:
                continue
            if trainer.is_global_zero:
                encoder = module.network.teacher.copy
                batches = encode(encoder, self.images, indices=self.rows, size=module.image_size, device=module.device)
                z = torch.from_numpy(np.concatenate(list(batches)))
                memory.refresh(z, torch.from_numpy(self.rows), len(self.images), epoch)
            found = {name: buffer.cpu() for name, buffer in memory.named_buffers()}
            for name, buffer in trainer.strategy.broadcast(found).items():
                setattr(memory, name, buffer.to(module.device))
