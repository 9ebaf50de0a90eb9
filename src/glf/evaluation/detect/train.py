"""Training and scoring of one detector. Training continues after an interruption from the last finished epoch."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from glf.checkpoint import load_checkpoint, save_checkpoint
from glf.config.evaluation import DetectOptions
from glf.evaluation.detect.annotations import Annotations
from glf.evaluation.detect.batches import batches
from glf.evaluation.detect.model import Detector
from glf.evaluation.detect.score import AveragePrecision
from glf.nn.backbone import Backbone
from glf.nn.features import fingerprint
from glf.nn.schedule import warmup_cosine
from glf.ui import progress

REFERENCE_BATCH = 16  # the learning rate is given for this batch size
WARMUP = 100  # steps, but at most a tenth of all
WEIGHT_DECAY = 1e-4


class DivergedError(ValueError):
    """The loss is not finite."""


def train_detector(backbone: Backbone, train: Annotations, lr: float, options: DetectOptions, path: Path) -> Detector:
    """Train a detector from the backbone, on the device of the backbone, with checkpoints in ``path``.

    All randomness follows from the seed and the epoch, so an interrupted training ends with the same weights.
    """
    device = next(backbone.parameters()).device
    with _seeded(options.detect_seed, device):
        model = Detector(backbone, len(train.classes), options)
        model.to(device)
    epoch_steps = math.ceil(len(train) / options.detect_batch)
    steps = epoch_steps * options.detect_epochs
    optimizer, scheduler = _optimizer(model, lr * options.detect_batch / REFERENCE_BATCH, steps)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    key = fingerprint(backbone, train.key, replace(options, boxes=None, detect_lr=(lr,)))
    stored = load_checkpoint(path) if path.exists() else {}
    done = 0
    if stored.get("key") == key:  # of exactly this training
        done = int(stored["epoch"])
        for name, part in parts.items():
            part.load_state_dict(stored[name])
    with progress() as bar:
        task = bar.add_task("", total=steps, completed=epoch_steps * done)
        for epoch in range(done, options.detect_epochs):
            for loss in _train_epoch(model, train, backbone.channels, options, optimizer, epoch):
                if not math.isfinite(loss):
                    raise DivergedError(
                        f"the loss is not finite in epoch {epoch + 1} at learning rate {lr:g}: lower --detect-lr"
                    )
                scheduler.step()
                bar.update(task, advance=1, description=f"detector, lr {lr:g}, loss {loss:.2f}")
            state = {name: part.state_dict() for name, part in parts.items()}
            save_checkpoint({**state, "epoch": epoch + 1, "key": key}, path)
    return model


def _train_epoch(
    model: Detector,
    train: Annotations,
    channels: int,
    options: DetectOptions,
    optimizer: torch.optim.Optimizer,
    epoch: int,
) -> Iterator[float]:
    """Yield the loss of each step."""
    device = next(model.parameters()).device
    seed = [options.detect_seed, epoch]
    masks = options.detect_task == "masks"
    model.train()
    with _seeded(int(np.random.SeedSequence(seed).generate_state(1)[0]), device):  # image sizes and sampled regions
        for images, targets in batches(
            train, channels, options.detect_batch, masks=masks, epoch_seed=seed, workers=_workers(device)
        ):
            on_device = [{key: value.to(device) for key, value in target.items()} for target in targets]
            losses = model([image.to(device) for image in images], on_device)
            loss: Tensor = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield float(loss.detach())


@torch.no_grad()
def score_detector(model: Detector, test: Annotations, options: DetectOptions, channels: int) -> dict[str, Any]:
    """Average precision of a detector on annotated images."""
    masks = options.detect_task == "masks"
    precision = AveragePrecision(test.classes, masks=masks)
    device = next(model.parameters()).device
    model.eval()
    with progress() as bar:
        task = bar.add_task("scoring detections", total=len(test))
        loader = batches(test, channels, options.detect_batch, masks=masks, epoch_seed=None, workers=_workers(device))
        for images, targets in loader:
            precision.update(model([image.to(device) for image in images]), targets)
            bar.update(task, advance=len(images))
        return precision.compute()


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators, which torchvision draws from, and restore the caller's state afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _optimizer(model: nn.Module, lr: float, steps: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """SGD with momentum 0.9; biases and normalisations, which are vectors, have no weight decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9)
    return optimizer, LambdaLR(optimizer, warmup_cosine(min(WARMUP, steps // 10), steps))


def _workers(device: torch.device) -> int:
    """Processes that decode images: none on a CPU, where the network takes almost all the time."""
    return 0 if device.type == "cpu" else min(8, os.cpu_count() or 1)
