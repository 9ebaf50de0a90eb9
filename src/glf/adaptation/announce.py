"""What an adaptation prints before it starts (what it will do, what to expect, how long it takes), and its choice."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from glf.adaptation import activations as trunk_activations
from glf.adaptation.activations import Encoder
from glf.adaptation.choose import Comparison
from glf.adaptation.resolve import FEW_IMAGES, ResolvedAdaptation
from glf.device import torch_device
from glf.measure.geometry import uniformity
from glf.nn.features import encode_all
from glf.train.callbacks import RunLog
from glf.train.inputs import ImageInputs
from glf.train.optim import scaled_lr
from glf.train.progress import format_duration
from glf.ui import counted

OUTLOOK_IMAGES = 500  # images whose frozen features say how concentrated they are
# Of DINOv3's 15 sets in a public benchmark, all 8 above the first bound gained or stayed, 5 of 7 below the second lost.
CONCENTRATED, SPREAD = -2.3, -3.0
TIMED = 64  # views of the batch from which the time is estimated


def announce(log: RunLog, resolved: ResolvedAdaptation, inputs: ImageInputs, encoder: Encoder) -> None:
    """Log the data, the encoder, what is trained, the method, and how long it will take."""
    run, config, images = resolved.run, resolved.config, inputs.images
    skipped = f", {len(images.skipped)} files skipped" if images.skipped else ""
    log(
        f"data      {images.name}: {inputs.count:,} training images, {len(inputs.val):,} held out"
        f" ({images.size[0]} x {images.size[1]}, {counted(images.channels, 'channel')}{skipped})"
    )
    if inputs.count < FEW_IMAGES:
        log(
            f"data      {inputs.count} images are few: in a public benchmark 100 images gained about a quarter of what"
            " 7,000 did, and held-out figures on so few are rough",
            "yellow",
        )
    everything = sum(p.numel() for p in encoder.backbone.parameters())
    parameters = sum(p.numel() for p in encoder.backbone.parameters() if p.requires_grad)
    what = {"norms": "all normalisation layers", "all": "everything"}.get(config.train, "")
    if encoder.halves is not None:
        what = (
            f"the last {len(encoder.halves.stages)} of {encoder.halves.of} stages ({', '.join(encoder.halves.stages)})"
        )
    log(
        f"encoder   {config.encoder} at {config.image_size} px: {encoder.backbone.width} features; training {what},"
        f" {parameters:,} of {everything:,} parameters"
    )
    terms = " + ".join(f"{weight:g} {term.name}" for weight, term in run.objective.parts)
    log(f"method    {run.method.name} = {terms}")
    steps = config.epochs * (inputs.count // config.batch_size)
    log(
        f"training  {counted(config.epochs, 'epoch')}, {counted(steps, 'step')},"
        f" heads alone for {round(config.head_share * steps):,};"
        f" lr {scaled_lr(config):g} (heads {config.head_lr:g}), batch {config.batch_size},"
        f" seed {config.seed}, {run.accelerator}"
    )
    few = np.random.default_rng(config.seed).permutation(inputs.train)[:OUTLOOK_IMAGES]
    features = encode_all(
        encoder.backbone, images, np.sort(few), size=config.image_size, device=torch_device(config.device)
    )
    log(f"features  {outlook(uniformity(features))}")
    log(f"time      {estimate_time(resolved, inputs, encoder)}")
    if not config.dry_run:
        log(f"run       {config.out}")


def estimate_time(resolved: ResolvedAdaptation, inputs: ImageInputs, encoder: Encoder) -> str:
    """Estimated duration of the trunk's pass and of training, from one measured batch of each."""
    config, device = resolved.config, torch_device(resolved.config.device)
    assert config.image_size is not None
    count = min(TIMED, len(inputs.images))
    make = partial(
        trunk_activations.batch_views,
        inputs.images.pixels[np.arange(count)],
        resolved.run.policy,
        config.image_size,
        1,
        config.colours,
        seed=(config.seed,),
        device=device,
    )
    rounds = len(resolved.run.policy) * inputs.count * config.epochs / count
    encoder.backbone.eval()
    if encoder.halves is None or not config.views:
        seconds = _timed(lambda: [encoder.backbone(x).sum().backward() for x in make()[1:2]])
        encoder.backbone.zero_grad(set_to_none=True)
        return f"about {format_duration(seconds * rounds)} of training"
    halves = encoder.halves
    with torch.no_grad():
        x = make()[1]
        trunk = _timed(lambda: halves.trunk(x))
        augmented = _timed(make)
        found = halves.trunk(x)
    tail = _timed(lambda: halves.tail(found).sum().backward())
    once = (trunk + augmented / (1 + len(resolved.run.policy))) * len(inputs.images) * (1 + config.views) / count
    encoder.backbone.zero_grad(set_to_none=True)
    return (
        f"about {format_duration(once)} for the trunk's activations, unless they are cached, and"
        f" {format_duration(tail * rounds)} of training"
    )


def _timed(work: Callable[[], Any]) -> float:
    """Seconds of a second call; the first one may initialise something."""
    work()
    _wait_for_device()
    started = time.perf_counter()
    work()
    _wait_for_device()
    return time.perf_counter() - started


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def log_choice(log: RunLog, found: Comparison) -> None:
    """Log the candidates, and in one sentence which of them is kept."""
    for candidate in found.candidates:
        values = candidate.values
        accuracy = f"k-NN {100 * values['knn']:.1f} %, " if "knn" in values else ""
        recall, kept = f"view recall {100 * values['recall']:.1f} %", f"{100 * values['kept']:.0f} % of neighbours kept"
        log(f"compared  {candidate.name}: {accuracy}{recall}, {kept}")
    log(f"chosen    {found.sentence()}", "bold")


def outlook(uniformity: float) -> str:
    """One line about the frozen features and the gain to expect.

    Uniformity (Wang and Isola) is the logarithm of the mean of exp(-2 |x - y|^2) over pairs of unit features: 0 if all
    are alike. In a public benchmark of continued pretraining without a term that preserves neighbourhoods, encoders
    with concentrated features gained, and those with spread features lost.

    >>> outlook(-1.5)[:78]
    'uniformity -1.50: concentrated; all 8 such sets of a public benchmark gained o'
    """
    if uniformity > CONCENTRATED:
        known = "concentrated; all 8 such sets of a public benchmark gained or stayed"
    elif uniformity <= SPREAD:
        known = "spread out; 5 of 7 such sets of a public benchmark lost"
    else:
        known = "neither concentrated nor spread out; a public benchmark says nothing about such sets"
    return f"uniformity {uniformity:.2f}: {known} (15 sets, no preserving term)"
