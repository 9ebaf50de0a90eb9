"""Settings of training: pretraining from nothing, and adapting a pretrained encoder."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import tyro

from glf.config.adc import AdcOptions
from glf.config.base import Repeated, nearest
from glf.config.bounds import Bounds, check_options

Optimizer = Literal["adamw", "sgd", "lars"]
Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed"]
Stem = Literal["auto", "small", "standard"]
Labels = Literal["auto", "none"]
Store = Literal["auto", "pack", "decode"]
Strategy = Literal["auto", "ddp"]
Colour = Literal["fused", "exact"]
Train = Literal["tail", "norms", "all"]
Norms = Literal["keep", "data"]
LOGGERS = ("tensorboard", "wandb", "mlflow", "csv")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Train a backbone on images, without labels."""

    data: str = "fashion-mini"
    """Name of a data set, hf:user/name of the Hugging Face Hub, or path of a folder, .tar, .csv of paths, .npz, .npy or
    .parquet (docs/data.md); or shards: a folder of them, a pattern such as shard-{000000..000099}.tar, URLs
    (docs/streams.md)."""
    method: str = "simclr+lpm"
    """Method, with or without an added constraint: simclr, byol+adc, vicreg+lpm (see `glf methods`)."""
    plugin: Repeated = ()
    """Python file that adds methods and constraints (docs/adding_a_term.md); may be repeated."""
    recipe: str | None = None
    """Named hyperparameter preset: tiny, cifar, imagenet, ... Flags you pass override it (see `glf methods NAME`)."""
    auto: bool = True
    """Pick unset options automatically from the images and the hardware (image files only, no arrays).
    --no-auto uses fixed defaults."""
    backbone: str | None = None
    """small_resnet, or any timm or torchvision model (timm:resnet18, torchvision:resnet18); default: automatic, else
    small_resnet."""
    out: Path | None = None
    """Run directory; default: runs/<method>-<data>-<seed>."""
    root: Path | None = None
    """Folder of the named data sets; default: $GLF_DATA or the user's cache."""
    download: bool = False
    """Allow downloads of a named data set or one of the Hub and of a prior's weights."""
    labels: Labels = "auto"
    """Use class folders or a column of labels for the online probe, or ignore them."""
    store: Store = "auto"
    """Image files: decode once into a memory-mapped cache (pack), or at every epoch in the workers (decode); auto packs
    if the disk has room."""
    max_images: int | None = None
    """Train on this many images only, a stratified sample drawn by the seed."""
    image_size: int | None = None
    """Crop size in pixels; default: automatic, else the size of small images and 224 for larger ones."""
    augment: str | None = None
    """Augmentation policy; default: automatic, else the method's."""
    colours: Colour | None = None
    """Colour augmentations as one matrix per image (fused, the default), or one by one with clamping as in torchvision
    (exact), at twice the cost."""
    stem: Stem = "auto"
    """First layers: stride 1 for small images (small), or the model's own (standard); auto: by the image size."""
    whiten_stem: bool = False
    """Set the first convolution to whitening filters of patches of the images, and do not train it (for short runs)."""
    weights: Path | None = None
    """Initial weights of the backbone (.safetensors, .pt, .pth, .ckpt)."""
    projector: tuple[int, ...] | None = None
    """Layer widths of the projector; default: the method's."""
    projector_norm: bool | None = None
    """Batch normalisation in the projector; default: the method's."""
    predictor: tuple[int, ...] | None = None
    """Hidden widths of the predictor; default: the method's."""
    local: tuple[int, ...] | None = None
    """Layer widths of the local projector (vicregl); default: the method's."""
    prototypes: int | None = None
    """Number of prototypes (swav, dino); default: the method's."""
    frozen_prototypes: float | None = None
    """Epochs during which the prototypes are not trained (swav, dino); default: the method's."""
    ema_momentum: tuple[float, float] | None = None
    """First and last momentum of the EMA teacher; default: the method's."""
    options: dict[str, float] = field(default_factory=dict)
    """Options of the method, by name: temperature 0.2."""
    adc: AdcOptions = AdcOptions()  # noqa: RUF009 (frozen)
    """Options of the added constraint."""
    prior: str | None = None
    """Prior of LPM, the frozen reference encoder: pixels, timm:<model>, torchvision:<model>, run:<directory>,
    file:<array>; default: automatic, else pixels."""
    prior_weights: Path | None = None
    """Local weights file of a timm: or torchvision: prior."""
    prior_width: int = 64
    """Number of principal components kept of the prior's features."""
    prior_size: int | None = None
    """Image size of the prior; default: the model's."""
    shuffle: int = 1000
    """Size of each worker's shuffle buffer (shards only)."""
    epoch_images: int | None = None
    """Images per epoch (shards only); default: all."""
    epochs: int | None = None
    """Passes over the training images; default: automatic, else 20."""
    batch_size: int | None = None
    """Global batch size, over all devices; default: automatic, else 256."""
    optimizer: Optimizer | None = None
    """Optimizer; default: adamw."""
    lr: float | None = None
    """Learning rate for a global batch of 256; it scales linearly with the batch size. Default: automatic, else
    0.002."""
    bias_lr: float | None = None
    """Learning rate of biases and normalisation layers, relative to lr; default: 1."""
    lars_eta: float | None = None
    """Trust coefficient of LARS; default: 0.02."""
    lars_clip: bool | None = None
    """Clip the trust ratio of LARS at 1, as solo-learn does; default: True."""
    weight_decay: float | None = None
    """Weight decay, not applied to biases and normalisation layers; default: 1e-4."""
    warmup_epochs: float | None = None
    """Epochs of linear warm-up before the cosine schedule; default: 1."""
    val_images: int | None = None
    """Training images held out for the online probe; default: a tenth, at most 5,000, if there are labels."""
    probe_every: int = 1
    """Epochs between online probes."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    logger: tuple[str, ...] = ()
    """Also log to tensorboard, wandb, mlflow or csv, or several of them (docs/loggers.md); metrics.jsonl is always
    written."""
    save_minutes: float = 10.0
    """Minutes between checkpoints, in addition to one per epoch."""
    save_every: int | None = None
    """Keep an extra checkpoint every this many epochs."""
    keep: int = 3
    """Number of extra checkpoints to keep."""
    seed: int = 0
    """Seed of everything random in the run."""
    device: str = "auto"
    """auto, cpu, gpu or mps."""
    devices: int = 1
    """Devices per node."""
    nodes: int = 1
    """Nodes; torchrun or SLURM starts the same command on each (docs/scale.md)."""
    strategy: Strategy = "auto"
    """Parallel strategy; auto is ddp with several devices."""
    sync_norm: bool = False
    """Synchronise batch normalisation over all devices (GPUs only)."""
    accumulate: int = 1
    """Chunks into which each device splits its batch to save memory; loss and gradient are those of the whole."""
    checkpoint_activations: bool = False
    """Compute the backbone's activations again in the backward pass: same gradients, less memory, a third more time."""
    precision: Precision = "32-true"
    """Precision of the network; the objective is computed in float32 or better."""
    compile: bool = False
    """Compile the backbone with torch.compile: about a minute at the start, faster steps on most GPUs."""
    workers: int | None = None
    """Data-loading processes, 0 for none; default: depends on where the images are stored."""
    stop_on_problem: bool = False
    """Stop with exit code 3 when the doctor finds a problem (docs/doctor.md)."""
    resume: bool = False
    """Resume from the last checkpoint of the run directory."""
    overwrite: bool = False
    """Delete the contents of the run directory first."""
    dry_run: bool = False
    """Set everything up, train two steps, write nothing."""

    def __post_init__(self) -> None:
        check_options(self, batch_size=Bounds(least=2, most=10**7))
        if self.compile and self.checkpoint_activations:
            raise ValueError("--compile decides itself what to compute again: drop --checkpoint-activations")
        if self.whiten_stem and self.weights is not None:
            raise ValueError("--whiten-stem would replace the first layer of --weights: drop one of them")
        for name in self.logger:
            if name not in LOGGERS:
                known = ", ".join(LOGGERS)
                raise ValueError(f"unknown logger {name!r}{nearest(name, LOGGERS)} (--logger takes {known})")


@dataclass(frozen=True, kw_only=True)
class ResolvedPretrainConfig(PretrainConfig):
    """A fully resolved ``PretrainConfig``, as saved in ``config.json``: the fixed defaults are defined here."""

    backbone: str = "small_resnet"
    prior: str = "pixels"
    epochs: int = 20
    batch_size: int = 256
    lr: float = 2e-3
    optimizer: Optimizer = "adamw"
    bias_lr: float = 1.0
    lars_eta: float = 0.02
    lars_clip: bool = True
    weight_decay: float = 1e-4
    warmup_epochs: float = 1.0
    colours: Colour = "fused"


@dataclass(frozen=True, kw_only=True)
class AdaptConfig(PretrainConfig):
    """Adapt a pretrained encoder to images, without labels, and keep the better of both."""

    encoder: tyro.conf.Positional[str] = "timm:tf_efficientnet_lite0"
    """Pretrained encoder: timm:<model>, torchvision:<model>, run:<directory>, or a file of weights with --backbone."""
    data: str = "fashion-mini"
    """Images: name of a data set, or path of a folder, .tar, .csv of paths, .npz or .npy."""
    out: Path | None = None
    """Run directory; default: runs/adapt-<encoder>-<data>-<seed>."""
    labels: Labels = "auto"
    """Use class folders or a column of labels, to compare frozen and adapted weights, or ignore them."""
    image_size: int | None = None
    """Image size in pixels; default: that of most images, at most the encoder's, and at most 128 on a CPU."""
    augment: str | None = None
    """Augmentation policy; default: mild."""
    weight_decay: float | None = None
    """Weight decay, not applied to biases and normalisation layers; default: 0.05."""
    adc: AdcOptions = AdcOptions(upsilon=0.3)  # noqa: RUF009 (frozen)
    """Options of the added constraint."""
    val_images: int | None = None
    """Training images held out to compare the weights; default: a tenth, at most 5,000."""
    backbone: str | None = None
    """Name of the model, if the encoder is a file of weights."""
    download: bool = False
    """Allow downloads of a named data set or one of the Hub and of the encoder's weights."""
    weights: Path | None = None
    """Local file with the weights of a timm: or torchvision: encoder."""
    train: Train = "tail"
    """What is trained: the last stages (tail), the scales and shifts of all normalisation layers (norms), or all."""
    tail: int | None = None
    """Number of stages that --train tail trains; default: the last two of eight or more, else the last one."""
    views: int | None = None
    """Augmented views of each image whose trunk activations are computed once; 0: the trunk runs in every epoch.
    Default: 8, fewer if the disk or the time does not allow so many."""
    lr: float | None = None
    """Learning rate of the trained part of the encoder, for any batch size; default: 1e-3, for transformers 1e-4."""
    norms: Norms = "keep"
    """Statistics of batch normalisation: those of the pretrained encoder (keep), or estimated on the images (data)."""
    head_share: float = 0.1
    """Share of training in which only the heads are trained."""
    head_lr: float = 1e-3
    """Learning rate of the heads."""
    l2sp: float = 0.0
    """Weight of L2-SP, half the squared distance from the pretrained weights."""
    choose: bool = True
    """Keep the best of frozen weights, adapted weights and their averages. --no-choose keeps the adapted weights."""
    # Not options of an adaptation: the encoder determines them.
    recipe: tyro.conf.Suppress[str | None] = None
    prior: tyro.conf.Suppress[str | None] = None
    prior_weights: tyro.conf.Suppress[Path | None] = None
    prior_size: tyro.conf.Suppress[int | None] = None
    stem: tyro.conf.Suppress[Stem] = "auto"
    shuffle: tyro.conf.Suppress[int] = 1000
    epoch_images: tyro.conf.Suppress[int | None] = None
    compile: tyro.conf.Suppress[bool] = False
    whiten_stem: tyro.conf.Suppress[bool] = False
    auto: tyro.conf.Suppress[bool] = True
    warmup_epochs: tyro.conf.Suppress[float | None] = None
    sync_norm: tyro.conf.Suppress[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sync_norm or self.compile or self.whiten_stem:
            raise ValueError("sync_norm, compile and whiten_stem do not apply to an adaptation")
        if self.tail is not None and self.train != "tail":
            raise ValueError(f"--tail only applies to --train tail, not to --train {self.train}")


@dataclass(frozen=True, kw_only=True)
class ResolvedAdaptConfig(ResolvedPretrainConfig, AdaptConfig):
    """A fully resolved ``AdaptConfig``, as saved in ``config.json``."""

    encoder: str = "timm:tf_efficientnet_lite0"
    epochs: int = 20
    lr: float = 1e-3
    weight_decay: float = 0.05
    augment: str = "mild"


def fill_unset(config: PretrainConfig, **values: Any) -> PretrainConfig:
    """Return the config with ``values`` in the place of fields that are None.

    >>> fill_unset(PretrainConfig(epochs=3), epochs=50, batch_size=64).epochs
    3
    """
    return replace(config, **{name: value for name, value in values.items() if getattr(config, name) is None})


def with_defaults(config: PretrainConfig) -> ResolvedPretrainConfig:
    """Return the config with the fixed defaults in the place of fields that are still None.

    >>> with_defaults(PretrainConfig(epochs=3)).batch_size
    256
    """
    kind = ResolvedAdaptConfig if isinstance(config, AdaptConfig) else ResolvedPretrainConfig
    given = {name: value for name, value in vars(config).items() if value is not None}
    return kind(**given | {"adc": config.adc.resolved()})


def config_type(values: Mapping[str, Any]) -> type[PretrainConfig]:
    """The class of a saved config: only that of an adaptation names an encoder."""
    return AdaptConfig if "encoder" in values else PretrainConfig
