"""What happens around the steps: the journal, the teacher, metrics, the online probe."""

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from rich.console import Console

from glf import result
from glf.data.images import ImageSet
from glf.distributed import launched_rank
from glf.files import RESUME_ADVICE, explain_full_disk, printable
from glf.measure.geometry import effective_rank, full_rank, spread
from glf.measure.neighbours import weighted_neighbours
from glf.nn.features import encode
from glf.nn.memory import Clusters
from glf.nn.network import momentum_at
from glf.train.module import Pretraining

PROBE_K, PROBE_TEMPERATURE = 20, 0.07
SHAPE_IMAGES = 2_000  # rank and spread need no more
TIMED_IMAGES = 64
FIRST, KEPT = 5, 200  # records that stay at hand: the first ones, to compare with, and the last


class RunLog:
    """What a run says: on the console, and in train.log."""

    def __init__(self, console: Console, path: Path | None) -> None:
        self.console, self.path = console, path

    def __call__(self, text: str, style: str = "") -> None:
        if launched_rank():
            return
        self.console.print(printable(text), style=style, highlight=False, markup=False, soft_wrap=True)
        self.note(text)

    def note(self, text: str) -> None:
        """In train.log alone: for what was said before there was one."""
        text = printable(text)
        if self.path is not None and not launched_rank():
            with explain_full_disk(self.path, RESUME_ADVICE), open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {text}\n")


class Throughput(L.Callback):
    """Images per second, and the share of time that training waited for data.

    It comes after all other callbacks: whatever they do, or wait for the device to do, belongs to the step.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.images, self.waited, self.training = 0, 0.0, False
        self.started = self.ended = time.perf_counter()
        self.before = (0, 0.0, self.started)  # what there was at the last lap

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._begin()  # a resumed run may begin in the middle of an epoch

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
        """Of this epoch, up to the last step: what follows an epoch, the probe above all, is not training."""
        return self._since(0, 0.0, self.started)

    def lap(self) -> dict[str, float]:
        """The same since the last call of this: what a slow start took is not held against the steps that follow."""
        before, self.before = self.before, (self.images, self.waited, self._now())
        return self._since(*before)

    def _now(self) -> float:
        return time.perf_counter() if self.training else self.ended

    def _since(self, images: int, waited: float, moment: float) -> dict[str, float]:
        elapsed = max(self._now() - moment, 1e-9)
        rate, share = (self.images - images) / elapsed, (self.waited - waited) / elapsed
        return {"images_per_second": round(rate, 1), "data_wait": round(share, 4)}


class Metrics(L.Callback):
    """metrics.jsonl: a line per logged step and a line per epoch. One name per quantity, everywhere."""

    def __init__(self, path: Path, clock: Throughput) -> None:
        self.path, self.clock = path, clock
        self.records: list[dict[str, Any]] = []

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero and self.path.exists():
            # A resumed run goes on from its checkpoint: what was logged after it will be logged again.
            lines = self.path.read_text().splitlines()
            kept = [line for line in lines if _step_of(line) <= trainer.global_step]
            result.write(self.path, "".join(line + "\n" for line in kept))
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

    def _remember(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if len(self.records) > FIRST + KEPT:
            del self.records[FIRST]


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError):  # a line that a kill cut short
        return float("inf")


class UpdateTeacher(L.Callback):
    """After a step, the teacher follows the student: before whatever looks at the two, or saves them."""

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        if module.network.teacher is not None and module.method.ema_momentum is not None:
            progress = module.global_step / (module.config.epochs * module.steps_per_epoch)
            momentum = momentum_at(progress, *module.method.ema_momentum)
            module.network.teacher.follow(module.network.student, momentum)


class Probe(L.Callback):
    """After an epoch: kNN of held-out training images where there are labels, and the cloud's rank and spread."""

    def __init__(
        self, images: ImageSet, bank: np.ndarray, val: np.ndarray, every: int, metrics: Metrics | None
    ) -> None:
        self.images, self.bank, self.val, self.every, self.metrics = images, bank, val, every, metrics
        self.latest: dict[str, float] = {}

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        last = trainer.current_epoch + 1 == trainer.max_epochs
        self.latest = {}
        if not last and (trainer.current_epoch + 1) % self.every:
            return
        if trainer.is_global_zero:
            assert isinstance(module, Pretraining)
            self.latest = self.measure(module)
            if self.metrics is not None:
                self.metrics.write(trainer, dict(self.latest))
        self.latest = trainer.strategy.broadcast(self.latest)

    def seconds(self, module: Pretraining) -> float:
        """About how long a measurement will take, by that of a few images."""
        count = len(self.bank) + len(self.val) if len(self.val) else min(len(self.bank), SHAPE_IMAGES)
        some = self.bank[:TIMED_IMAGES]
        started = time.perf_counter()
        self._features(module, some)
        return (time.perf_counter() - started) * count / len(some)

    def measure(self, module: Pretraining) -> dict[str, float]:
        """val/knn (weighted, k 20, temperature 0.07); val/rank, the val/full_rank to judge it by, val/spread."""
        if len(self.val) == 0:  # nothing held out: the cloud's shape can be judged on what was trained on
            return _shape(self._features(module, self.bank[:SHAPE_IMAGES]))
        bank, val = (self._features(module, rows) for rows in (self.bank, self.val))
        result = _shape(val[:SHAPE_IMAGES])
        if self.images.labelled:
            labels, truth = (torch.from_numpy(self.images.targets[rows]) for rows in (self.bank, self.val))
            k = min(PROBE_K, len(bank))
            predicted = weighted_neighbours(bank, labels, val, k, PROBE_TEMPERATURE)
            result["val/knn"] = round(float((predicted == truth).float().mean()), 4)
        return result

    def _features(self, module: Pretraining, rows: np.ndarray) -> torch.Tensor:
        backbone = module.network.backbone
        batches = encode(backbone, self.images, rows=rows, size=module.image_size, device=module.device)
        return torch.from_numpy(np.concatenate(list(batches)))


def _shape(features: torch.Tensor) -> dict[str, float]:
    full = round(full_rank(*features.shape), 4)
    return {"val/rank": effective_rank(features), "val/full_rank": full, "val/spread": spread(features)}


class RefreshClusters(L.Callback):
    """Before an epoch: clusters of the teacher's outputs for the whole training set, where a method wants them.

    The first process clusters and tells the others: batch normalisation may have made their teachers differ.
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
                batches = encode(encoder, self.images, rows=self.rows, size=module.image_size, device=module.device)
                z = torch.from_numpy(np.concatenate(list(batches)))
                memory.refresh(z, torch.from_numpy(self.rows), len(self.images), epoch)
            found = {name: buffer.cpu() for name, buffer in memory.named_buffers()}
            for name, buffer in trainer.strategy.broadcast(found).items():
                setattr(memory, name, buffer.to(module.device))
