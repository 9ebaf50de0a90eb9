"""From the options of ``glf adapt`` to the config of its run: encoder, image size, batch size, length of training."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from glf.adaptation.activations import VIEWS, activation_cache, free_disk, planned_views
from glf.config.base import data_name
from glf.config.training import AdaptConfig, ResolvedAdaptConfig
from glf.data.image_cache import cache_root
from glf.data.images import ImageSet, default_held_out
from glf.data.source import Source
from glf.data.sources import find_source
from glf.device import accelerator
from glf.distributed import launched_rank
from glf.loggers import check_installed
from glf.nn.backbone import Backbone, stem_kind
from glf.nn.cut import Halves, cut, norm_parameters
from glf.nn.features import fingerprint
from glf.nn.memory import Clusters
from glf.nn.norms import batch_norms
from glf.nn.pretrained import is_library_model, load_encoder, resized
from glf.nn.recompute import find_blocks
from glf.rundir import read_config
from glf.runfiles import ACTIVATIONS, CONFIG
from glf.train.auto_config import CPU_SIDE, Choice, median_side
from glf.train.resolve import Resolved, resolve

SMALLEST, STEP = 64, 32  # px: smaller images are enlarged to this side; sizes are multiples of STEP
FEW_IMAGES = 100
EPOCHS, MOST_IMAGES = 20, 400_000  # epochs, and images seen in all of them together
CONVOLUTION_LR = (1e-3, "for a convolutional encoder")
TRANSFORMER_LR = (1e-4, "for a transformer")
# Transformers of timm whose position embeddings can be resampled
RESIZABLE = ("VisionTransformer", "VisionTransformerDistilled", "Eva")
BATCH, BATCHES = 256, 4  # batch size, and batches of an epoch if there are fewer images


class ResolvedAdaptation(NamedTuple):
    """Everything about an adaptation that is known before an image is decoded."""

    run: Resolved
    encoder: Backbone  # pretrained, at the image size of the run
    key: str  # fingerprint of the encoder as it is before anything is changed
    halves: Halves | None  # its trunk and tail, if only the tail is trained

    @property
    def config(self) -> ResolvedAdaptConfig:
        """The config of the run."""
        assert isinstance(self.run.config, ResolvedAdaptConfig)
        return self.run.config


def resolve_adaptation(config: AdaptConfig) -> ResolvedAdaptation:
    """Resolve and check every option before anything slow happens; on --resume the saved config is used."""
    config = name_encoder(config)
    config = replace(config, out=config.out or default_directory(config))
    check_options(config)
    check_installed(config.logger)
    choices, source, encoder = list[Choice](), None, None
    if not config.resume:
        encoder = load_encoder(config.encoder, weights=config.weights, download=config.download)
        source = find_source(config.data, "train", root=config.root, download=config.download)
        config, choices = automatic(config, encoder, source)
    run = resolve(replace(config, auto=False))
    resolved = run.config
    assert isinstance(resolved, ResolvedAdaptConfig)
    if encoder is None:
        encoder = load_encoder(resolved.encoder, weights=resolved.weights, download=config.download)
    encoder = resized(encoder, resolved.image_size)
    halves = cut_trained(encoder, resolved)
    return ResolvedAdaptation(run._replace(choices=choices, source=source), encoder, fingerprint(encoder), halves)


def check_options(config: AdaptConfig) -> None:
    """Refuse options that contradict each other."""
    kind, _, path = config.encoder.partition(":")
    if kind == "run" and config.weights is not None:
        raise ValueError(f"--weights is for timm: and torchvision: encoders; {config.encoder} has its own")
    if (
        kind == "run"
        and config.out is not None
        and not config.resume
        and os.path.realpath(config.out) == os.path.realpath(path)
    ):
        raise ValueError(f"{config.out} is the encoder's own directory: choose another --out")
    if config.l2sp and config.precision == "16-mixed":
        raise ValueError("--l2sp does not work with --precision 16-mixed: use bf16-mixed")


def cut_trained(encoder: Backbone, config: ResolvedAdaptConfig) -> Halves | None:
    """Cut off what is trained; refuse what the encoder does not have, before anything slow and before an overwrite."""
    if config.norms == "data" and not batch_norms(encoder):
        raise ValueError(f"{encoder.name} has no batch normalisation: drop --norms data")
    if config.train == "norms" and not norm_parameters(encoder):
        raise ValueError(f"{encoder.name} has no normalisation layers with parameters: use --train tail or all")
    if config.checkpoint_activations:
        find_blocks(encoder)
    return cut(encoder, config.tail) if config.train == "tail" else None


def default_directory(config: AdaptConfig) -> Path:
    """The run directory, if none is given."""
    name = config.encoder.partition(":")[2].rstrip("/").rpartition("/")[2]
    return Path("runs") / f"adapt-{name}-{data_name(config.data)}-{config.seed}"


def with_views(resolved: ResolvedAdaptation, images: ImageSet) -> ResolvedAdaptation:
    """Set the number of cached views, for which the images must be known; a saved config has it already."""
    config, run = resolved.config, resolved.run
    if config.resume and config.views is not None:
        return resolved
    if launched_rank() and config.out is not None and (config.out / CONFIG).exists():
        saved = read_config(config.out)  # of the first process: by now its activations may have filled the disk
        assert isinstance(saved, ResolvedAdaptConfig)
        views, why = saved.views or 0, ""
    else:
        views, why = plan_views(resolved, images)
    choices = [*run.choices, Choice("views", views, why)] if config.views is None else run.choices
    return resolved._replace(run=run._replace(config=replace(config, views=views), choices=choices))


def plan_views(resolved: ResolvedAdaptation, images: ImageSet) -> tuple[int, str]:
    """Number of cached views of each image, 0 for a trunk that runs in every epoch, and why."""
    run, config, encoder, halves = resolved.run, resolved.config, resolved.encoder, resolved.halves
    if config.dry_run:
        return 0, "a dry run caches nothing"
    if halves is None:
        return 0, f"--train {config.train} has no frozen trunk"
    if len({view.side for view in run.policy}) > 1:
        return 0, f"the policy {config.augment} has views of several sizes: the trunk runs in every epoch"
    if "maps" in run.objective.needs or any(isinstance(m, Clusters) for m in run.objective.modules()):
        return 0, f"{run.method.title} needs the images themselves: the trunk runs in every epoch"
    blank = torch.zeros(1, encoder.channels, encoder.image_size, encoder.image_size)
    with torch.no_grad():
        size = 2 * halves.trunk.eval()(blank).numel()  # float16
    free = free_disk(cache_root())
    for views in (config.views, VIEWS):  # those that are there already need no room
        if views is not None:
            cached = activation_cache(
                cache_root() / ACTIVATIONS, halves.trunk, images, run.policy, replace(config, views=views)
            )
            free += cached.count * cached.width * 2 * 2
    return planned_views(config.views, len(images), len(run.policy), size, free)


def name_encoder(config: AdaptConfig) -> AdaptConfig:
    """The config with an encoder that names its kind: timm:, torchvision: or run:, with a file of weights if given."""
    spec, path = config.encoder, Path(os.path.expanduser(config.encoder))
    if config.backbone is not None and not isinstance(config, ResolvedAdaptConfig):
        if is_library_model(spec) or spec.startswith("run:"):
            raise ValueError(f"--backbone names the model of a file of weights, and {spec} already names one: drop it")
        if not path.is_file():
            raise FileNotFoundError(f"no weights at {path}: give a .safetensors, .pt, .pth or .ckpt file")
        return replace(config, encoder=_with_library(config.backbone), weights=path, backbone=None)
    if is_library_model(spec) or spec.startswith("run:"):
        return config
    if path.is_dir() or path.suffix == ".safetensors":
        return replace(config, encoder=f"run:{path}")
    if path.is_file():
        raise ValueError(f"{path} does not say which model it belongs to: name it with --backbone, such as resnet50")
    return replace(config, encoder=_with_library(spec))


def _with_library(name: str) -> str:
    """Name of a model with its library; timm's wins if both have it."""
    if is_library_model(name):
        return name
    import timm
    import torchvision

    if not timm.is_model(name) and name in torchvision.models.list_models(module=torchvision.models):
        return f"torchvision:{name}"
    return f"timm:{name}"


def automatic(config: AdaptConfig, encoder: Backbone, source: Source) -> tuple[AdaptConfig, list[Choice]]:
    """Fill the options that depend on the encoder and the images."""
    check_size(encoder, config.image_size or encoder.image_size)
    size, why = image_size(config, encoder, source)
    count = min(len(source), config.max_images or len(source))
    held_out = config.val_images
    if held_out is None:
        held_out = default_held_out(count)
    train = count - held_out
    batch = min(BATCH, 2 ** max(1, (train // BATCHES).bit_length() - 1))
    epochs = max(1, min(EPOCHS, MOST_IMAGES // max(1, train)))
    values: dict[str, tuple[Any, str]] = {
        "lr": TRANSFORMER_LR if is_transformer(encoder) else CONVOLUTION_LR,
        "val_images": (held_out, "held out to compare the weights at the end"),
        "image_size": (size, why),
        "batch_size": (batch, f"there are {train:,} training images"),
        "epochs": (epochs, f"{epochs * (train // batch):,} steps"),
    }
    choices = [Choice(name, value, why) for name, (value, why) in values.items() if getattr(config, name) is None]
    config = replace(config, **{choice.name: choice.value for choice in choices})
    return replace(
        config,
        backbone=encoder.name,
        stem=encoder.stem,
        prior=config.encoder,
        prior_weights=config.weights,
        prior_size=config.image_size,
    ), choices


def check_size(encoder: Backbone, size: int) -> None:
    """Refuse a size for which the first layers of a run's backbone would be built in another way when it is loaded."""
    own, new = (stem_kind(encoder.stem, side) for side in (encoder.image_size, size))
    patches = hasattr(encoder.body, "patch_embed") and own != "standard" and size != encoder.image_size
    if own != new or patches:
        raise ValueError(
            f"the first layers of this encoder were made for {encoder.image_size} px, and not for --image-size {size}:"
            " leave it out"
        )


def image_size(config: AdaptConfig, encoder: Backbone, source: Source) -> tuple[int, str]:
    """The size of most images, within what the encoder was made for and what the device can compute.

    A run's backbone keeps its own size. A transformer gets a multiple of its patches.
    """
    if config.encoder.startswith("run:"):
        return encoder.image_size, "the size of the encoder"
    side = min(source.pixels.shape[1:3]) if source.pixels is not None else median_side(source)
    size, why = side // STEP * STEP, f"the shorter side of most images is {side} px"
    if size < SMALLEST:
        size, why = SMALLEST, f"images of {side} px are enlarged: the encoder was trained on {encoder.image_size} px"
    if size > encoder.image_size:
        size, why = encoder.image_size, "the size of the encoder"
    if accelerator(config.device) == "cpu" and size > CPU_SIDE:
        size, why = CPU_SIDE, f"on a CPU, {size} px would take {(size / CPU_SIDE) ** 2:.0f} times as long"
    if is_transformer(encoder):
        patch = getattr(getattr(encoder.body, "patch_embed", None), "patch_size", None)
        if type(encoder.body).__name__ not in RESIZABLE or patch is None:
            return encoder.image_size, "the size of the encoder"
        size = max(1, size // int(patch[0])) * int(patch[0])
    return size, why


def is_transformer(encoder: Backbone) -> bool:
    """Whether the encoder cuts images into patches."""
    return hasattr(encoder.body, "patch_embed") or hasattr(encoder.body, "conv_proj")
