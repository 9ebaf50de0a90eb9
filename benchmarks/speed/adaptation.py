"""An epoch of glf adapt on cached activations of the trunk, next to one that trains the tail through the live trunk."""

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from glf.adaptation.resolve import resolve_adaptation
from glf.adaptation.run import build, compute_activations, prepare
from glf.config.training import AdaptConfig
from glf.malloc import retain_freed_memory
from glf.train.inputs import ImageInputs, load_inputs
from speed.timing import Row, interleaved, processes

IMAGES, SIZE = 448, 96
STEPS = 2  # of one timed repetition: an epoch


def compared(photos: Path, place: Path) -> list[Row]:
    """Seconds of an epoch on cached activations, relative to an epoch through the live trunk.

    Through the trunk as PyTorch trains it, which is what the cache replaces; and through a trunk whose batch
    normalisations are folded into the convolutions, as glf trains it where there is no room for a cache.
    """
    found = processes({"adapt": ["speed.adaptation", str(photos), str(place)]})
    cached, live, folded, operations, size = found["adapt"]
    part = f"an epoch of glf adapt, EfficientNet-Lite0 at {SIZE} px, simclr+lpm"
    what = "last stage, on cached activations"
    work = f"with {operations:.2f} of the floating-point operations; {size / 1e3:.1f} kB per view"
    rows = []
    for other, to, limit in ((live, "through the live trunk", 0.2), (folded, "through a folded live trunk", None)):
        value = f"{cached:.2f} against {other:.2f} s for {IMAGES} photos, {work}"
        rows.append(Row(part=part, what=what, value=value, ratio=cached / other, to=to, at_most=limit))
    return rows


def measured(photos: Path, place: Path) -> list[float]:
    """Seconds of an epoch: cached, live, live and folded; the cached share of operations; bytes per cached view."""
    warnings.filterwarnings("ignore", ".*self.log.*")
    base = AdaptConfig(
        data=str(photos),
        image_size=SIZE,
        max_images=IMAGES,
        val_images=0,
        batch_size=IMAGES // STEPS,
        out=place / "run",
    )
    with retain_freed_memory(True):
        cached, size = epoch(replace(base, views=2))
        folded, _ = epoch(replace(base, views=0))
        live, _ = epoch(replace(base, views=0), fold=False)
        seconds = interleaved({"cached": cached, "live": live, "folded": folded}, repetitions=15)
    tail, whole = forward_operations(cached), forward_operations(live)
    operations = 3 * tail / (2 * tail + whole)  # a backward pass, through the tail only, takes two forward passes
    return [seconds["cached"], seconds["live"], seconds["folded"], operations, float(size)]


def forward_operations(train: Callable[..., None]) -> int:
    """Floating-point operations of convolutions and matrix products in the forward passes of an epoch."""
    with FlopCounterMode(display=False) as counter:
        train(backward=False)
    return int(counter.get_total_flops())


def epoch(config: AdaptConfig, *, fold: bool = True) -> tuple[Callable[..., None], int]:
    """A function that trains for one epoch, and the size of one view's activations in bytes."""
    resolved = resolve_adaptation(config)
    inputs = load_inputs(resolved.run)
    assert isinstance(inputs, ImageInputs)
    inputs = inputs.only_used()
    encoder = prepare(resolved, inputs)
    inputs.compute_prior(lambda text: None)
    encoder = encoder._replace(activations=compute_activations(resolved, inputs, encoder))
    module = build(resolved, inputs, encoder)
    if not fold:
        module.network.faster = []
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-5, fused=True)
    batches = iter(cycle(module.dataloader(0, 1)))

    def train(backward: bool = True) -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = module.training_step(next(batches), 0)
            if backward:
                loss.backward()
                optimizer.step()

    return train, 0 if encoder.activations is None else int(encoder.activations[0, 0].nbytes)


if __name__ == "__main__":
    print(json.dumps(measured(Path(sys.argv[1]), Path(sys.argv[2]))))
