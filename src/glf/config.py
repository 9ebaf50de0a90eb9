"""Settings as frozen keyword-only dataclasses. Unknown keys are errors; every run saves its own.

No torch here: the command line reads this file to print its help.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from glf.options import DetectOptions as DetectOptions

TScale = Literal["printed", "scale", "matched"]
Reading = Literal["calibrated", "paper"]
CovarianceKind = Literal["sphere", "batch", "running"]
Optimizer = Literal["adamw", "sgd", "lars"]
Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed"]
Stem = Literal["auto", "small", "standard"]
Labels = Literal["auto", "none"]
Split = Literal["test", "val"]
Store = Literal["auto", "pack", "decode"]
Colour = Literal["fused", "exact"]
C = TypeVar("C")


@dataclass(frozen=True, kw_only=True)
class AdcOptions:
    """The added constraints: +dcm, +lpm, +adc. See docs/equations.md."""

    nu: float = 0.3
    """Weight of DCM."""
    upsilon: float = 0.3
    """Weight of LPM."""
    rho: float = 5.0
    """Degrees of freedom of the Student-t rows, above 2."""
    effective_dim: float = 16.0
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
    """A source's name, or the path of a folder, a .tar, an .npz or an .npy."""
    method: str = "simclr+adc"
    """A method, with or without a constraint: simclr, byol+adc, vicreg+lpm (see `glf methods`)."""
    recipe: str | None = None
    """Settings by name: tiny, cifar, imagenet and the like; what is given beside it counts (see `glf methods NAME`)."""
    backbone: str = "small_resnet"
    """small_resnet, or any timm or torchvision model by name (timm:resnet18, torchvision:resnet18)."""
    out: Path | None = None
    """The run's directory; runs/<method>-<data>-<seed> when not given."""
    root: Path | None = None
    """Where named data sets lie; GLF_DATA or the user's cache when not given."""
    download: bool = False
    """Let a named data set be downloaded."""
    labels: Labels = "auto"
    """Take class folders as labels for the probe, or ignore them."""
    store: Store = "auto"
    """Image files: packed once into a memory-mapped store, or decoded at every epoch by the workers; auto packs
    what fits on the disk."""
    limit: int | None = None
    """Use only so many training images, drawn by the seed, classes in proportion."""
    image_size: int | None = None
    """Side of the crops; the images' own size for small ones, 224 otherwise."""
    views: str | None = None
    """Augmentation recipe; the method's own when not given."""
    masks: Path | None = None
    """A folder of grey files named like the images, white where these are salient (--views salient; relicv2)."""
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
    momentum: tuple[float, float] | None = None
    """First and last momentum of the teacher; the method's own when not given."""
    options: dict[str, float] = field(default_factory=dict)
    """The method's own numbers, by name: temperature 0.2."""
    adc: AdcOptions = AdcOptions()
    """The added constraint."""
    prior: str = "pixels"
    """f_pre of LPM: pixels, timm:<model>, run:<directory>, file:<array>."""
    prior_weights: Path | None = None
    """A local file with the weights of a timm: prior."""
    prior_width: int = 64
    """Width that the prior's features are reduced to, once."""
    prior_size: int | None = None
    """Side of the images that a timm: prior sees; the model's own when not given."""
    epochs: int = 20
    """Passes over the training images."""
    batch_size: int = 256
    """Images in a global batch, over all devices."""
    optimizer: Optimizer = "adamw"
    """Optimiser."""
    lr: float = 2e-3
    """Learning rate for a global batch of 256; it scales with the batch."""
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
    save_every: int | None = None
    """Keep an extra checkpoint every so many epochs."""
    keep: int = 3
    """How many of those extra checkpoints to keep."""
    seed: int = 0
    """Everything random in a run follows from this."""
    device: str = "auto"
    """auto, cpu, gpu, mps."""
    devices: int = 1
    """Devices of this node."""
    precision: Precision = "32-true"
    """Precision of the network; the objective is computed in float32 at least."""
    compile: bool = False
    """Compile the backbone (torch.compile): a minute or so at the start, faster steps on most GPUs."""
    workers: int | None = None
    """Processes that read images, 0 for the training process itself; when not given, as many as suit the place
    where the images live."""
    resume: bool = False
    """Go on from the last checkpoint of the run's directory."""
    overwrite: bool = False
    """Delete what the run's directory holds."""
    dry_run: bool = False
    """Set everything up, take two steps, write nothing."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Judge a run's backbone on the test split, next to raw pixels and the untrained network."""

    run: Path
    """The run's directory."""
    data: str | None = None
    """Judge on other data than the run's: a source's name or a path."""
    root: Path | None = None
    """Where named data sets lie."""
    download: bool = False
    """Let a named data set be downloaded."""
    split: Split = "test"
    """The test split; or val, the training images that the run held out: for choosing settings."""
    limit: int | None = None
    """Learn from only so many training images, classes in proportion; all when not given."""
    knn_k: int = 20
    """Neighbours of the weighted kNN."""
    knn_temperature: float = 0.07
    """Temperature of the weighted kNN."""
    probe_epochs: int = 500
    """Epochs of the linear probe (the paper's: 500)."""
    references: bool = True
    """Judge raw pixels and the untrained network too."""
    batch_size: int = 512
    """Images in a batch of the feature pass."""
    device: str = "auto"
    """auto, cpu, gpu, mps."""
    seed: int = 0
    """Seed of the linear probe's batches."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Methods with and without constraints, over seeds: what differs within a pair of runs is the constraint alone."""

    study: Path | None = None
    """A file that says what is compared and how (benchmarks/studies); what else is given comes on top of it."""
    scale: str = "tiny"
    """Which scale of the study's file."""
    methods: tuple[str, ...] | None = None
    """Methods, as in the table; simclr byol barlow_twins vicreg when not given."""
    constrain: tuple[str, ...] | None = None
    """Constraints to add, the first of which the others are compared with; none dcm lpm adc when not given."""
    data: tuple[str, ...] | None = None
    """Names of sources, or paths; fashion-mini, or the study's, when not given."""
    seeds: int | None = None
    """Runs of each; 3, or the study's, when not given."""
    settings: dict[str, str] = field(default_factory=dict)
    """Any settings of pretraining, by name: epochs 6 views gentle nu 0.1."""
    judging: dict[str, str] = field(default_factory=dict)
    """Any settings of evaluation, by name: split val limit 10000."""
    out: Path = Path("runs/compare")
    """Where runs and tables go; what is there already is not done again."""
    jobs: int | None = None
    """Runs at once; as many as there are GPUs or cores and memory when not given."""


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """Judge a stored run again: same numbers, or different ones?"""

    result: Path
    """A result.json, or the directory of the run that it belongs to."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """One HTML page about one run or several: the table and the curves."""

    runs: Path
    """The directory of a run, or one that holds several."""
    out: Path = Path("report.html")
    """The page to write."""


@dataclass(frozen=True, kw_only=True)
class MethodsConfig:
    """The table of methods: aligning part, constraining part, paper; of one method, its options and recipes."""

    name: str | None = None
    """One method."""


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as plain JSON types."""
    return {name: _plain(value) for name, value in asdict(config).items()}


def from_dict(kind: type[C], values: Mapping[str, Any]) -> C:
    """The configuration back; an unknown key is a ValueError that names the nearest known one.

    >>> from_dict(PretrainConfig, {"epoch": 3})
    Traceback (most recent call last):
    ValueError: unknown configuration key 'epoch' - did you mean 'epochs'?
    """
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    converted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"unknown configuration key {name!r}{nearest(name, known)}")
        if name == "adc" and isinstance(value, Mapping):
            value = from_dict(AdcOptions, value)
        elif isinstance(value, str) and "Path" in str(known[name].type):
            value = Path(value)
        elif isinstance(value, list):
            value = tuple(value)
        converted[name] = value
    return kind(**converted)


def nearest(name: str, known: Iterable[str]) -> str:
    """`` - did you mean 'x'?`` when something known is near, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" - did you mean {close[0]!r}?" if close else ""


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value
