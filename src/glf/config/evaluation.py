"""How a backbone is judged, compared and shown."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from glf.config.base import above, at_least
from glf.config.transfer import DetectOptions, FinetuneOptions

Suite = Literal["knn", "linear", "logistic", "geometry", "theory", "finetune", "detect", "all"]
Split = Literal["test", "val"]


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Judge a backbone on the test split, next to raw pixels and the untrained network."""

    run: Path
    """A run's directory, a backbone that glf has saved, or a model by name: timm:resnet18, torchvision:resnet50."""
    suite: tuple[Suite, ...] = ("knn", "linear", "geometry")
    """What to report; all for everything that the data allow."""
    compare_with: tuple[str, ...] = ()
    """Other runs or models to judge in the same table: a supervised one, a peer's."""
    weights: Path | None = None
    """Weights of a model by name (.safetensors, .pt, .pth); its library's pretrained ones when not given."""
    image_size: int | None = None
    """Side of the images that a model by name sees; its own when not given."""
    out: Path | None = None
    """Where the result goes; into the run, or runs/<model>-<data> for a model by name."""
    data: str | None = None
    """Judge on other data than the run's: a source's name or a path."""
    root: Path | None = None
    """Where named data sets lie."""
    download: bool = False
    """Let a named data set, or the weights of a model by name, be downloaded."""
    split: Split = "test"
    """The test split; or val, the training images that the run held out: for choosing settings."""
    max_images: int | None = None
    """Learn from only so many training images, classes in proportion; all when not given."""
    knn_k: int = 20
    """Neighbours of the weighted kNN."""
    knn_temperature: float = 0.07
    """Temperature of the weighted kNN."""
    probe_epochs: int = 500
    """Epochs of the linear probe (the paper's: 500)."""
    probe_lrs: tuple[float, ...] = (1e-2,)
    """Learning rates of the linear probe (the paper's: 0.01); the best on a tenth of train when several are given."""
    logistic_c: tuple[float, ...] = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    """Strengths C of the logistic probe, of which the best on a tenth of train is taken."""
    finetune: FinetuneOptions = FinetuneOptions()  # noqa: RUF009 (frozen)
    """Fine-tuning."""
    detect: DetectOptions = DetectOptions()  # noqa: RUF009 (frozen)
    """Detection and segmentation."""
    references: bool = True
    """Judge raw pixels and the untrained network too."""
    artifacts: bool = True
    """Write what the report shows beside numbers into artifacts/: a map, neighbours, views, likely outliers."""
    batch_size: int = 512
    """Images in a batch of the feature pass."""
    device: str = "auto"
    """auto, cpu, gpu, mps."""
    seed: int = 0
    """Seed of the probes' batches and of what is drawn from train."""

    def __post_init__(self) -> None:
        at_least(self, image_size=1, max_images=1, knn_k=1, probe_epochs=1, batch_size=1)
        above(self, knn_temperature=0, probe_lrs=0, logistic_c=0)


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
    evaluation: dict[str, str] = field(default_factory=dict)
    """Any settings of evaluation, by name: split val max_images 10000."""
    out: Path = Path("runs/compare")
    """Where runs and tables go; what is there already is not done again."""
    jobs: int | None = None
    """Runs at once; as many as there are GPUs or cores and memory when not given."""

    def __post_init__(self) -> None:
        at_least(self, seeds=1, jobs=1)


@dataclass(frozen=True, kw_only=True)
class VerifyConfig:
    """Judge a stored run again: same numbers, or different ones?"""

    result: Path
    """A result.json, or the directory of the run that it belongs to."""


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Is a run healthy? What is wrong with it, since when, and what to try; while it runs or afterwards."""

    run: Path
    """The directory of the run."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """One HTML page about a run, several of them or a comparison, that needs neither network nor server."""

    runs: Path
    """The directory of a run, of a comparison, or one that holds several."""
    out: Path = Path("report.html")
    """The page to write."""
    figures: Path | None = None
    """Write its figures as SVG and PNG and its numbers as CSV and JSON into this folder, too."""


@dataclass(frozen=True, kw_only=True)
class MethodsConfig:
    """The table of methods: aligning part, constraining part, paper; of one method, its options and recipes."""

    name: str | None = None
    """One method."""
