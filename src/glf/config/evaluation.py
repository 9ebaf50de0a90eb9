"""Settings of evaluation and comparison, and of the commands that read finished runs.

The k of both k-NN classifiers and the temperature of the weighted one are defined here.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import tyro

from glf.config.base import Repeated, nearest
from glf.config.bounds import check_options

PAPER_KNN_K = 5  # k of the paper's k-NN: Euclidean distance, majority vote
KNN_K = 20  # k of the weighted k-NN, also of the online probe during training
SHOTS, SHOT_DRAWS = (1, 10, 100), 10  # labels per class of the few-shot evaluation, and draws that are averaged
KNN_TEMPERATURE = 0.07  # its temperature: votes are weighted by exp(cosine / temperature)

Suite = Literal["knn", "linear", "logistic", "fewshot", "geometry", "theory", "finetune", "detect", "all"]
Split = Literal["test", "val"]
DetectTask = Literal["boxes", "masks"]
DetectNorm = Literal["frozen", "batch"]


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """Fine-tuning on a fraction of the labels (--suite finetune)."""

    fractions: tuple[float, ...] = (0.01, 0.1)
    """Fractions of the training labels, as stratified samples; 1 uses all of them."""
    finetune_indices: Path | None = None
    """JSON file with the indices of the labelled training images (written by a previous evaluation); overrides
    --fractions."""
    finetune_epochs: int = 30
    """Epochs on a tenth of the labels or more. Smaller fractions get proportionally more epochs, at most ten times as
    many."""
    finetune_lr: float = 0.02
    """Learning rate of the backbone for a batch of 256; the classifier's is ten times as large."""
    finetune_batch: int = 128
    """Batch size."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class DetectOptions:
    """Transfer to object detection and instance segmentation (--suite detect, docs/detection.md)."""

    boxes: str | None = None
    """Annotated images: a Pascal VOC or COCO folder as published, your own in either format, or a .tar of one."""
    detect_task: DetectTask = "boxes"
    """Boxes only (Faster R-CNN), or boxes and masks (Mask R-CNN; COCO format only)."""
    detect_size: int = 320
    """Shorter side of the images in pixels (MoCo: 800); anchors scale with it."""
    detect_shrink: float = 0.6
    """Training images are resized to between this fraction of detect_size and detect_size (MoCo: 480 to 800)."""
    detect_epochs: int = 24
    """Passes over the training images (24,000 steps of 16 images on VOC 2007+2012 are 23)."""
    detect_batch: int = 8
    """Batch size."""
    detect_lr: tuple[float, ...] = (0.02,)
    """Learning rates for a batch of 16, scaled with the batch size; with several, the best on a held-out fifth of the
    training images is used."""
    detect_regions: int = 128
    """Regions sampled per training image for the box head (MoCo: 512); twice as many are kept at test time."""
    detect_pool: int = 14
    """Side of the grid to which RoIAlign pools a region of the conv4 feature map; conv5 halves it."""
    detect_norm: DetectNorm = "frozen"
    """Batch normalisation with the running statistics of the backbone (frozen), or with those of each batch (batch)."""
    detect_freeze: int = 0
    """Frozen stages: 0 none (MoCo), 1 the stem, 2 also layer1, 3 also layer2, 4 also layer3."""
    detect_seed: int = 0
    """Seed of the heads, image order, flips and sampled regions, and of the split of images without split lists."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluate a backbone on the test split, next to raw pixels and the network before training."""

    run: Path
    """Run directory, saved backbone, or library model (timm:resnet18, torchvision:resnet50)."""
    suite: tuple[Suite, ...] = ("knn", "linear", "fewshot", "geometry")
    """Evaluations to run; `all` runs every one that the data allow."""
    compare_with: tuple[str, ...] = ()
    """Other runs or library models to evaluate in the same table."""
    weights: Path | None = None
    """Weights file of a library model (.safetensors, .pt, .pth); default: the library's pretrained weights."""
    image_size: int | None = None
    """Image size of a library model; default: the model's own."""
    out: Path | None = None
    """Directory of the result; default: the run itself, or runs/<model>-<data> for anything else."""
    data: str | None = None
    """Images to evaluate on: name of a data set, or path; default: the data of the run."""
    root: Path | None = None
    """Folder of the named data sets; default: that of the run."""
    download: bool = False
    """Allow downloads of a named data set or one of the Hub and of a library model's weights."""
    split: Split = "test"
    """The test split, or `val`: the training images held out by the run, for choosing hyperparameters."""
    max_images: int | None = None
    """Number of training images that the classifiers learn from, as a stratified sample; default: all."""
    knn_k: int = KNN_K
    """k of the weighted k-NN (cosine similarity)."""
    knn_temperature: float = KNN_TEMPERATURE
    """Temperature of the weighted k-NN."""
    probe_epochs: int = 500
    """Epochs of the linear probe (paper: 500)."""
    probe_lrs: tuple[float, ...] = (1e-2,)
    """Learning rates of the linear probe (paper: 0.01); with several, the best on a tenth of train is used."""
    logistic_c: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    """Inverse regularisation strengths C of the logistic probe; with several, the best on a tenth of train is used."""
    finetune: FinetuneOptions = FinetuneOptions()
    """Fine-tuning."""
    detect: DetectOptions = DetectOptions()
    """Detection and segmentation."""
    references: bool = True
    """Evaluate raw pixels and the network before training too: untrained, or the frozen encoder of an adaptation."""
    artifacts: bool = True
    """Write the data of the report's figures to artifacts/: feature map, neighbours, augmented views, outliers."""
    log: bool = True
    """Also log the evaluation of a run to the loggers that it was trained with."""
    batch_size: int = 512
    """Batch size of feature extraction."""
    device: str = "auto"
    """auto, cpu, gpu, mps."""
    seed: int = 0
    """Seed of the probes' batches and of all samples drawn from train."""

    def __post_init__(self) -> None:
        for name in self.suite:
            if name not in get_args(Suite):
                known = get_args(Suite)
                raise ValueError(f"unknown evaluation {name!r}{nearest(name, known)} (--suite: {', '.join(known)})")
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Compare methods with and without constraints over paired seeds: same weights, batches and augmentations."""

    study: Path | None = None
    """Study file (benchmarks/studies); other flags override its settings."""
    scale: str = "tiny"
    """Scale of the study to run."""
    methods: tuple[str, ...] | None = None
    """Methods; default: simclr byol barlow_twins vicreg."""
    constrain: tuple[str, ...] | None = None
    """Constraints to add; the first is the baseline of the others. Default: none dcm lpm adc."""
    plugin: Repeated = ()
    """Python file that adds methods and constraints; may be repeated."""
    data: tuple[str, ...] | None = None
    """Names of data sets, or paths; default: the study's, or fashion-mini."""
    seeds: int | None = None
    """Number of seeds; default: the study's, or 3."""
    settings: dict[str, str] = field(default_factory=dict)
    """Pretraining options by name: epochs 6 augment gentle nu 0.1."""
    evaluation: dict[str, str] = field(default_factory=dict)
    """Evaluation options by name: split val max_images 10000."""
    out: Path = Path("runs/compare")
    """Directory of runs and tables; finished runs in it are not repeated."""
    jobs: int | None = None
    """Parallel runs; default: as many as the GPUs, or the cores and the memory, allow."""

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """Evaluate a stored run again and check that the numbers are the same."""

    result: Path
    """A result.json, or the run directory that contains it."""


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Check the health of a run, during training or afterwards: problems, the step they began at, and fixes."""

    run: Path
    """Run directory."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Write one self-contained HTML page about a run, several runs or a comparison."""

    runs: Path
    """Directory of a run, of a comparison, or of several runs."""
    out: Path = Path("report.html")
    """The HTML file to write."""
    figures: Path | None = None
    """Also write the figures (SVG, PNG) and the numbers (CSV, JSON) to this folder."""


@dataclass(frozen=True, kw_only=True)
class MethodsConfig:
    """List the methods with their aligning part, constraining part and paper; or the options and recipes of one."""

    name: tyro.conf.Positional[str | None] = None
    """A method."""
    plugin: Repeated = ()
    """Python file that adds methods and constraints; may be repeated."""
