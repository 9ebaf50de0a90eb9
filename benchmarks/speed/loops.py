"""Training loops in images per second: `glf pretrain`, the example of lightly's documentation, and the backbone alone.

The forward and backward pass of the backbone alone is the limit. Each loop runs in its own process.
"""

import os
import shutil
import sys
import tempfile
import time
from operator import truediv
from pathlib import Path
from statistics import mean, median

import lightning as L
import numpy as np
import torch
from rich.console import Console

from glf.config.training import ResolvedPretrainConfig
from glf.distributed import launched_rank
from glf.nn.backbone import Backbone
from glf.train.run import pretrain
from speed.timing import Row, processes, runs

METHOD = "simclr+adc"
SETUPS = {"small_resnet": (256, 20), "resnet18": (64, 5)}  # batch size, steps per repetition


class Limit:
    """Forward and backward pass of the backbone on precomputed views, in the memory layout of training.

    ``plain`` is lightly's way: torch's default layout, one forward pass per view.
    """

    def __init__(self, backbone: str, batch: int, plain: bool = False) -> None:
        layout = torch.contiguous_format if plain else torch.channels_last
        self.network = Backbone(backbone, channels=3, image_size=32).to(memory_format=layout)
        views = torch.rand(2 * batch, 3, 32, 32).to(memory_format=layout)
        self.views = views.chunk(2) if plain else [views]

    def step(self) -> None:
        torch.stack([self.network(x).sum() for x in self.views]).sum().backward()
        self.network.zero_grad()


class Stopwatch(L.Callback):
    """Seconds of each training step, each followed by a timed step of the limit, if given.

    The speed of the machine drifts; alternating steps make it drift for both alike.
    """

    def __init__(self, limit: Limit | None) -> None:
        self.limit = limit
        self.steps: list[float] = []
        self.limits: list[float] = []
        self.mark: float | None = None  # the first step is a warm-up

    def on_train_batch_end(self, *_: object) -> None:
        now = time.perf_counter()
        if self.mark is not None:
            self.steps.append(now - self.mark)
        if self.limit is not None:
            self.limit.step()
            if self.mark is not None:
                self.limits.append(time.perf_counter() - now)
        self.mark = time.perf_counter()


def ours(backbone: str, batch: int, steps: int, images: str, devices: int = 1) -> list[float]:
    """``glf pretrain``: data in memory, augmentation, objective with ADC, optimizer, metrics, progress, Lightning.

    Returns images per second; on one device also those of the limit, and the fraction of each step that it takes.
    """
    out = Path(os.environ.setdefault("GLF_BENCH_OUT", tempfile.mkdtemp()))  # shared by all processes of a run
    config = ResolvedPretrainConfig(
        data=images,
        method=METHOD,
        backbone=backbone,
        batch_size=batch,
        max_images=batch * (steps + 1),
        val_images=0,
        epochs=1,
        devices=devices,
        out=out / "run",
    )
    watch = Stopwatch(Limit(backbone, batch) if devices == 1 else None)
    pretrain(config, Console(quiet=True), callbacks=[watch])
    if launched_rank():  # the first process reports for all
        sys.exit()
    shutil.rmtree(out)
    rates = [batch / mean(seconds) for seconds in (watch.steps, watch.limits) if seconds]
    return rates + [limit / step for step, limit in zip(watch.steps, watch.limits, strict=False)]


def plain(backbone: str, batch: int, steps: int) -> float:
    """The backbone in lightly's layout, without glf's memory settings."""
    limit, seconds = Limit(backbone, batch, plain=True), []
    for _ in range(steps + 1):
        start = time.perf_counter()
        limit.step()
        seconds.append(time.perf_counter() - start)
    return batch / mean(seconds[1:])


def lightly(backbone: str, batch: int, steps: int, images: str, workers: int) -> float:
    """The SimCLR example of lightly's documentation with our backbone: two forward passes, NT-Xent, a DataLoader."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from PIL import Image

    from glf.data.augment.policies import POLICIES
    from speed.augmentation import lightly as transform
    from speed.pictures import small

    class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
        """As torchvision's CIFAR10: an array in memory, a PIL image per item, the transform in the worker."""

        def __init__(self, pixels: np.ndarray) -> None:
            self.pixels, self.transform = pixels, transform(POLICIES["wmse"][0], 32)

        def __len__(self) -> int:
            return len(self.pixels)

        def __getitem__(self, index: int) -> tuple[object, int]:
            return self.transform(Image.fromarray(self.pixels[index])), 0

    loader = torch.utils.data.DataLoader(
        Pictures(small(images)),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    model = torch.nn.ModuleList([Backbone(backbone, channels=3, image_size=32), SimCLRProjectionHead(256, 512, 128)])
    if backbone != "small_resnet":
        model[1] = SimCLRProjectionHead(512, 512, 128)
    criterion = NTXentLoss(temperature=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ends: list[float] = []
    while len(ends) <= steps:
        for (x0, x1), _ in loader:
            loss = criterion(model[1](model[0](x0)), model[1](model[0](x1)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.append(time.perf_counter())
            if len(ends) > steps:
                break
    return batch * (len(ends) - 1) / (ends[-1] - ends[0])


def compared(images: str) -> list[Row]:
    """Both backbones next to their limits and to lightly's loop with its best number of workers."""
    return [
        *_compared(images, "small_resnet", 5, 0.90, 1.8),
        *_compared(images, "resnet18", 3, 0.97, 1.25),
    ]


def _compared(images: str, backbone: str, repetitions: int, of_limit: float, of_lightly: float) -> list[Row]:
    """Medians of ratios per round, or per step where both are in one run, because the machine's speed drifts."""
    batch, steps = SETUPS[backbone]
    call = ["speed.loops", images, backbone, str(batch), str(steps)]
    cases = {"ours": [*call, "ours"], "in lightly's memory layout": [*call, "plain"]}
    cases |= {f"lightly, {w} workers": [*call, "lightly", str(w)] for w in (0, 2)}
    found = runs(cases, repetitions)
    speed = {name: [turn[0] for turn in turns] for name, turns in found.items()}
    speed["backbone alone"] = [turn[1] for turn in found["ours"]]
    fractions = [fraction for turn in found["ours"] for fraction in turn[2:]]
    best = max(("lightly, 0 workers", "lightly, 2 workers"), key=lambda name: median(speed[name]))
    rows = [
        ("glf pretrain", "ours", "backbone alone", of_limit),
        ("glf pretrain", "ours", best, of_lightly),
        ("backbone alone", "backbone alone", "in lightly's memory layout", None),
    ]
    return [
        Row(
            part=f"end to end, {backbone}, batch {batch}, {METHOD}",
            what=what,
            value=f"{median(speed[one]):,.1f} against {median(speed[to]):,.1f} images/s",
            ratio=median(fractions if to == "backbone alone" else map(truediv, speed[one], speed[to])),
            to=to,
            at_least=least,
        )
        for what, one, to, least in rows
    ]


def two_processes(images: str) -> list[Row]:
    """Two processes with one thread each next to one with two threads, at the same global batch size."""
    call = ["speed.loops", images, "small_resnet", "256", "20"]
    found = processes({"one": [*call, "ours"], "two": [*call, "ours2"]})
    speed = {name: values[0] for name, values in found.items()}
    return [
        Row.of_speeds(
            "two processes on two cores, small_resnet, global batch 256",
            "glf pretrain --devices 2",
            speed["two"],
            speed["one"],
            to="one process",
            at_least=0.9,
        )
    ]


def main() -> list[float]:
    """Run the loop that the command line names."""
    images, backbone, batch, steps, kind, *rest = sys.argv[1:]
    setup = (backbone, int(batch), int(steps))
    if kind == "lightly":
        return [lightly(*setup, images, int(rest[0]))]
    if kind == "plain":
        return [plain(*setup)]
    if kind == "ours2":
        torch.set_num_threads(1)
    return ours(*setup, images, devices=2 if kind == "ours2" else 1)


if __name__ == "__main__":
    print(main())
