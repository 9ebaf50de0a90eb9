"""An epoch of glf adapt on cached activations of the trunk, next to one that trains the tail through the live trunk."""

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
from speed.timing import Row, interleaved

IMAGES, SIZE = 448, 96
STEPS = 2  # of one timed repetition: an epoch


def compared(photos: Path, place: Path) -> list[Row]:
    """Seconds of an epoch on cached activations, relative to an epoch through the live trunk."""
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
        live, _ = epoch(replace(base, views=0))
        seconds = interleaved({"cached": cached, "live": live}, repetitions=15)
    tail, whole = forward_operations(cached), forward_operations(live)
    operations = 3 * tail / (2 * tail + whole)  # a backward pass, through the tail only, takes two forward passes
    value = (
        f"{seconds['cached']:.2f} against {seconds['live']:.2f} s for {IMAGES} photos, with {operations:.2f} of the"
        f" floating-point operations; {size / 1e3:.1f} kB per view"
    )
    return [
        Row(
            part=f"an epoch of glf adapt, EfficientNet-Lite0 at {SIZE} px, simclr+lpm",
            what="last stage, on cached activations",
            value=value,
            ratio=seconds["cached"] / seconds["live"],
            to="through the live trunk",
            at_most=0.2,
        )
    ]


def forward_operations(train: Callable[..., None]) -> int:
    """Floating-point operations of convolutions and matrix products in the forward passes of an epoch."""
    with FlopCounterMode(display=False) as counter:
        train(backward=False)
    return int(counter.get_total_flops())


def epoch(config: AdaptConfig) -> tuple[Callable[..., None], int]:
    """A function that trains for one epoch, and the size of one view's activations in bytes."""
    resolved = resolve_adaptation(config)
    inputs = load_inputs(resolved.run)
    assert isinstance(inputs, ImageInputs)
    inputs = inputs.only_used()
    encoder = prepare(resolved, inputs)
    inputs.compute_prior(lambda text: None)
    encoder = encoder._replace(activations=compute_activations(resolved, inputs, encoder))
    module = build(resolved, inputs, encoder)
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
