"""How a backbone is trained."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from glf.config.base import above, at_least

TScale = Literal["printed", "scale", "matched"]
Reading = Literal["calibrated", "paper"]
CovarianceKind = Literal["sphere", "batch", "running"]
Optimizer = Literal["adamw", "sgd", "lars"]
Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed"]
Stem = Literal["auto", "small", "standard"]
Labels = Literal["auto", "none"]
Store = Literal["auto", "pack", "decode"]
Strategy = Literal["auto", "ddp"]
Colour = Literal["fused", "exact"]


@dataclass(frozen=True, kw_only=True)
class AdcOptions:
    """The added constraints: +dcm, +lpm, +adc. See docs/equations.md."""

    nu: float = 0.3
    """Weight of DCM."""
    upsilon: float = 1.0
    """Weight of LPM."""
    rho: float = 5.0
    """Degrees of freedom of the Student-t rows, above 2."""
    effective_dim: float = 8.0
    """Effective dimension of z's rows."""
    prior_effective_dim: float = 16.0
    """Effective dimension of the prior's rows."""
    concentration: float = 1.0
    """Concentration of LPM's Dirichlet; it enters only as a product with upsilon."""
    ramp_epochs: float = 0.0
    """Epochs over which DCM's weight rises from zero to nu."""
    t_scale: TScale = "printed"
    """Scale matrix of the t."""
    reading: Reading = "calibrated"
    """Our reading of the paper's equations, or what is printed."""
    covariance: CovarianceKind | None = None
    """Covariance of the kernels: sphere when calibrated, batch in the paper's reading."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Train a backbone on images, without labels."""

    data: str = "fashion-mini"
    """A source's name, or the path of a folder, a .tar, an .npz or an .npy; or shards: a folder of them, a pattern like
    shard-{000000..000099}.tar, URLs (docs/streams.md)."""
    method: str = "simclr+lpm"
    """A method, with or without a constraint: simclr, byol+adc, vicreg+lpm (see `glf methods`)."""
    recipe: str | None = None
    """Settings by name: tiny, cifar, imagenet and the like; what is given beside it counts (see `glf methods NAME`)."""
    auto: bool = True
    """Choose what is not given by the images of a folder or .tar and by this machine; otherwise, and for other data,
    fixed defaults."""
    backbone: str | None = None
    """small_resnet, or any timm or torchvision model by name (timm:resnet18, torchvision:resnet18); chosen, or
    small_resnet, when not given."""
    out: Path | None = None
    """The run's directory; runs/<method>-<data>-<seed> when not given."""
    root: Path | None = None
    """Where named data sets lie; GLF_DATA or the user's cache when not given."""
    download: bool = False
    """Let a named data set, or the weights of a timm: prior, be downloaded."""
    labels: Labels = "auto"
    """Take class folders as labels for the probe, or ignore them."""
    store: Store = "auto"
    """Image files: packed once into a memory-mapped store, or decoded at every epoch by the workers; auto packs
    what fits on the disk."""
    max_images: int | None = None
    """Use only so many training images, drawn by the seed, classes in proportion."""
    image_size: int | None = None
    """Side of the crops; chosen, or the images' own size for small ones and 224 otherwise, when not given."""
    augment: str | None = None
    """Augmentation recipe; chosen, or the method's own, when not given."""
    masks: Path | None = None
    """A folder of grey files named like the images, white where these are salient (--augment salient; relicv2)."""
    colours: Colour = "fused"
    """Colour operations multiplied into one matrix per image, or one by one and clamped after each, as torchvision
    does, at twice the cost."""
    stem: Stem = "auto"
    """First layers for small images (stride 1), or the model's own; auto goes by the image size."""
    weights: Path | None = None
    """Start the backbone from this file (.safetensors, .pt, .pth, .ckpt)."""
    projector: tuple[int, ...] | None = None
    """Widths of the projector's layers; the method's own when not given."""
    projector_norm: bool | None = None
    """Batch normalisation between them; the method's own when not given."""
    predictor: tuple[int, ...] | None = None
    """Hidden widths of the predictor; the method's own when not given."""
    local: tuple[int, ...] | None = None
    """Widths of the local projector (vicregl); the method's own when not given."""
    prototypes: int | None = None
    """Number of prototypes (swav); the method's own when not given."""
    ema_momentum: tuple[float, float] | None = None
    """First and last momentum of the teacher; the method's own when not given."""
    options: dict[str, float] = field(default_factory=dict)
    """The method's own numbers, by name: temperature 0.2."""
    adc: AdcOptions = AdcOptions()
    """The added constraint."""
    prior: str | None = None
    """f_pre of LPM: pixels, timm:<model>, run:<directory>, file:<array>; chosen, or pixels, when not given."""
    prior_weights: Path | None = None
    """A local file with the weights of a timm: prior."""
    prior_width: int = 64
    """Width that the prior's features are reduced to, once."""
    prior_size: int | None = None
    """Side of the images that a timm: prior sees; the model's own when not given."""
    shuffle: int = 1000
    """Of shards: samples that each worker holds to draw from."""
    epoch_images: int | None = None
    """Of shards: images that make an epoch; all of them when not given."""
    epochs: int | None = None
    """Passes over the training images; chosen, or 20, when not given."""
    batch_size: int | None = None
    """Images in a global batch, over all devices; chosen, or 256, when not given."""
    optimizer: Optimizer = "adamw"
    """Optimiser."""
    lr: float | None = None
    """Learning rate for a global batch of 256, with which it scales; chosen, or 0.002, when not given."""
    bias_lr: float = 1.0
    """Rate of biases and normalisations, relative to that of the weights."""
    lars_eta: float = 0.02
    """Trust coefficient of LARS: how far a step goes, relative to the weights' length."""
    lars_clip: bool = True
    """LARS never goes further than the rate itself (solo-learn's form), or adapts without that bound."""
    weight_decay: float = 1e-4
    """Weight decay; biases and normalisation layers take none."""
    warmup_epochs: float = 1.0
    """Epochs of linear warm-up, before the cosine."""
    val_images: int | None = None
    """Training images held out for the online probe; a tenth, at most 5,000, when there are labels."""
    probe_every: int = 1
    """Epochs between online probes."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    save_minutes: float = 10.0
    """Save the state of the run after so many minutes, beside the end of every epoch."""
    save_every: int | None = None
    """Keep an extra checkpoint every so many epochs."""
    keep: int = 3
    """How many of those extra checkpoints to keep."""
    seed: int = 0
    """Everything random in a run follows from this."""
    device: str = "auto"
    """auto, cpu, gpu, mps."""
    devices: int = 1
    """Devices of each node."""
    nodes: int = 1
    """Nodes, on each of which torchrun or SLURM starts the same command (docs/scale.md)."""
    strategy: Strategy = "auto"
    """How devices work together: ddp where there are several."""
    sync_norm: bool = False
    """Batch normalisation over the batches of all devices, not of each for itself; GPUs only."""
    accumulate: int = 1
    """Parts in which each device computes its share of a batch, one after the other, to save memory; loss and gradient
    are those of the whole batch."""
    precision: Precision = "32-true"
    """Precision of the network; the objective is computed in float32 at least."""
    compile: bool = False
    """Compile the backbone (torch.compile): a minute or so at the start, faster steps on most GPUs."""
    workers: int | None = None
    """Processes that read images, 0 for the training process itself; when not given, as many as suit the place
    where the images live."""
    stop_on_problem: bool = False
    """Stop, with exit code 3, as soon as the doctor finds something (docs/doctor.md)."""
    resume: bool = False
    """Go on from the last checkpoint of the run's directory."""
    overwrite: bool = False
    """Delete what the run's directory holds."""
    dry_run: bool = False
    """Set everything up, take two steps, write nothing."""

    def __post_init__(self) -> None:
        at_least(self, epochs=1, batch_size=2, accumulate=1, devices=1, nodes=1, workers=0)
        at_least(self, image_size=1, max_images=1, val_images=0, shuffle=1, epoch_images=1, prior_width=1, prior_size=1)
        at_least(self, probe_every=1, log_every=1, save_every=1, keep=0, prototypes=1)
        at_least(self, lr=0, weight_decay=0, warmup_epochs=0, bias_lr=0, save_minutes=0)
        above(self, lars_eta=0)


@dataclass(frozen=True, kw_only=True)
class ResolvedPretrainConfig(PretrainConfig):
    """The same with nothing left to choose: what a run has, and saves. The defaults are those of what is not chosen."""

    backbone: str = "small_resnet"
    prior: str = "pixels"
    epochs: int = 20
    batch_size: int = 256
    lr: float = 2e-3


def resolved(config: PretrainConfig, **chosen: Any) -> ResolvedPretrainConfig:
    """The configuration with what was ``chosen`` where it leaves something open, and fixed values for the rest.

    >>> settled(PretrainConfig(epochs=3), epochs=50, batch_size=64).epochs
    3
    """
    given = {name: value for name, value in vars(config).items() if value is not None}
    return ResolvedPretrainConfig(**{**chosen, **given})
