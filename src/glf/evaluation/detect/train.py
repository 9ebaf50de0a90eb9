"""Training and judging of one detector; training goes on after an interruption from its last finished epoch."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from glf import checkpoint
from glf.config.transfer import DetectOptions
from glf.evaluation.detect.annotations import Annotations
from glf.evaluation.detect.batches import batches
from glf.evaluation.detect.model import Detector
from glf.evaluation.detect.score import Scores
from glf.nn.backbone import Backbone
from glf.nn.features import fingerprint
from glf.train.optim import schedule

REFERENCE_BATCH = 16
WARMUP = 100  # steps, or a tenth of all when these are few
WEIGHT_DECAY = 1e-4


class DivergedError(ValueError):
    """The loss is not finite."""


def train_detector(backbone: Backbone, train: Annotations, rate: float, options: DetectOptions, path: Path) -> Detector:
    """A detector trained from the backbone, on the backbone's device; its checkpoint is ``path``.

    Everything random follows from the seed and the epoch, so that a run that was interrupted ends in the same weights.
    """
    device = next(backbone.parameters()).device
    with _seeded(options.detect_seed, device):
        model = Detector(backbone, len(train.classes), options)
        model.to(device)
    steps = math.ceil(len(train) / options.detect_batch)
    optimizer, course = _optimizer(model, rate * options.detect_batch / REFERENCE_BATCH, steps * options.detect_epochs)
    key = fingerprint(backbone, train.key, replace(options, boxes=None, detect_lr=(rate,)))
    done = _resumed(model, optimizer, course, path, key)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps * options.detect_epochs, completed=steps * done)
        for epoch in range(done, options.detect_epochs):
            for loss in _epoch(model, train, backbone.channels, options, optimizer, epoch):
                if not math.isfinite(loss):
                    raise DivergedError(
                        f"the loss is not finite in epoch {epoch + 1} at rate {rate:g}: lower --detect-lr"
                    )
                course.step()
                bar.update(task, advance=1, description=f"detector, lr {rate:g}, loss {loss:.2f}")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "course": course.state_dict()}
            checkpoint.save({**state, "epoch": epoch + 1, "key": key}, path)
    return model


def _epoch(
    model: Detector,
    train: Annotations,
    channels: int,
    options: DetectOptions,
    optimizer: torch.optim.Optimizer,
    epoch: int,
) -> Iterator[float]:
    """One pass over the images; yields the loss of each step."""
    device = next(model.parameters()).device
    seed = [options.detect_seed, epoch]
    masks = options.detect_task == "masks"
    model.train()
    with _seeded(int(np.random.SeedSequence(seed).generate_state(1)[0]), device):  # sizes and sampled regions
        for images, targets in batches(
            train, channels, options.detect_batch, masks=masks, epoch_seed=seed, workers=_workers(device)
        ):
            moved = [{key: value.to(device) for key, value in one.items()} for one in targets]
            losses = model([image.to(device) for image in images], moved)
            loss: Tensor = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield float(loss.detach())


@torch.no_grad()
def score_detector(model: Detector, test: Annotations, options: DetectOptions, channels: int) -> dict[str, Any]:
    """Average precision on annotated images."""
    masks = options.detect_task == "masks"
    scores = Scores(test.classes, masks=masks)
    device = next(model.parameters()).device
    model.eval()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("judging detections", total=len(test))
        loaded = batches(test, channels, options.detect_batch, masks=masks, epoch_seed=None, workers=_workers(device))
        for images, targets in loaded:
            scores.update(model([image.to(device) for image in images]), targets)
            bar.update(task, advance=len(images))
        return scores.compute()


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """torchvision draws from torch's own generators, which are the caller's: they are as they were afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _optimizer(model: nn.Module, rate: float, steps: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """SGD with momentum 0.9; vectors are biases and normalisations, and take no decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=0.9)
    return optimizer, LambdaLR(optimizer, schedule(min(WARMUP, steps // 10), steps))


def _resumed(model: nn.Module, optimizer: torch.optim.Optimizer, course: LambdaLR, path: Path, key: str) -> int:
    """The finished epochs of a checkpoint of this very training, now in model and optimiser; 0 when there is none."""
    stored = checkpoint.load(path) if path.exists() else {}
    if stored.get("key") != key:
        return 0
    model.load_state_dict(stored["model"])
    optimizer.load_state_dict(stored["optimizer"])
    course.load_state_dict(stored["course"])
    return int(stored["epoch"])


def _workers(device: torch.device) -> int:
    """Processes that decode images: beside a GPU some, on a CPU none, where the network takes all the time anyway."""
    return 0 if device.type == "cpu" else min(8, os.cpu_count() or 1)
