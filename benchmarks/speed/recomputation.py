"""--checkpoint-activations: peak memory and time of the forward and backward pass, next to stored activations."""

import json
import sys
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from glf.malloc import retain_freed_memory
from glf.nn.backbone import Backbone
from glf.nn.recompute import checkpoint_activations
from speed.timing import Row, interleaved, processes

SETUPS = {"resnet50": (32, 64), "vit_small_patch16_224": (8, 224)}  # images, pixels
WORDS = {"resnet50": "ResNet-50", "vit_small_patch16_224": "ViT-S/16"}


def compared() -> list[Row]:
    """Both as ratios to stored activations. Memory is counted and does not depend on the load of the machine."""
    rows = []
    for name, found in processes({name: ["speed.recomputation", name] for name in SETUPS}, repetitions=1).items():
        memory, stored, seconds, plain = found
        images, side = SETUPS[name]
        part = f"--checkpoint-activations, {WORDS[name]}, {images} images of {side} px, forward and backward pass"
        to = "stored activations"
        value = f"{memory / 1e6:,.0f} against {stored / 1e6:,.0f} MB above weights and gradients"
        rows.append(Row(part=part, what="peak memory", value=value, ratio=memory / stored, to=to, at_most=0.6))
        value = f"{seconds:.2f} against {plain:.2f} s"
        rows.append(Row(part=part, what="time", value=value, ratio=seconds / plain, to=to))
    return rows


def step(name: str, again: bool) -> Callable[[], None]:
    """A forward and backward pass that adds to gradients which are there already."""
    images, side = SETUPS[name]
    torch.manual_seed(0)
    network = Backbone(f"timm:{name}", image_size=side, stem="standard").to(memory_format=torch.channels_last)
    if again:
        checkpoint_activations(network)
    x = torch.rand(images, 3, side, side).to(memory_format=torch.channels_last)

    def run() -> None:
        network(x).square().mean().backward()

    run()
    return run


def peak(run: Callable[[], None]) -> int:
    """The most bytes that tensors take at once, in addition to those that are there before: torch's own count."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    now = most = 0
    for event in found.profiler.kineto_results.events():  # in the order of time
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def measured(name: str) -> list[float]:
    """Peak memory in bytes, and seconds of a step: each for activations computed again, and for stored ones."""
    again, stored = step(name, True), step(name, False)
    memory = [float(peak(again)), float(peak(stored))]
    with retain_freed_memory():
        seconds = interleaved({"again": again, "stored": stored}, repetitions=5)
    return [*memory, seconds["again"], seconds["stored"]]


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])))
