"""How a backbone is used once it is trained: rows of images, neighbours, outliers, files for other libraries."""
# MERGED DOCS:
# | """How images become shards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glf.config.base import at_least
from glf.config.training import Labels

Format = Literal["timm", "torchvision", "safetensors", "onnx"]


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """What makes rows of images, for every command that reads them."""

    run: str
    """A run's directory, a backbone that glf has saved, a model by name (timm:resnet18, torchvision:resnet50), or
    pixels."""
    weights: Path | None = None
    """Weights of a model by name (.safetensors, .pt, .ckpt); its library's pretrained ones when not given."""
    image_size: int | None = None
    """Side of the images that a model by name sees; its own when not given."""
    download: bool = False
    """Let a named data set, or the weights of a model by name, be downloaded."""
    batch_size: int = 128
    """Images that the backbone sees at a time."""
    device: str = "auto"
    """auto, cpu, gpu, mps."""


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(EncoderOptions):
    """Write a row of features for every image; the same command goes on where it was stopped."""

    photos: str
    """A folder (searched to its end), a .tar, an .npz or .npy, or the name of a published set."""
    out: Path = Path("embeddings.npy")
    """The file to write: .npy (paths in a .json beside it), .csv, or .parquet."""
    map: bool = False
    """Add two columns for a picture: t-SNE of up to 5,000 images, the first two principal components of more."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig(EncoderOptions):
    """List the images of a folder that are most similar to one image or several, by the cosine of their features."""

    images: tuple[str, ...]
    """One query or more, image files; and last the folder or .tar that is searched."""
    k: int = 10
    """Images listed for each query."""
    out: Path | None = None
    """Write the list as .csv too: query, rank, similarity, path."""

    def __post_init__(self) -> None:
        at_least(self, k=1)


@dataclass(frozen=True, kw_only=True)
class OutliersConfig(EncoderOptions):
    """List images that are like no others, and groups of images that are nearly the same."""

    photos: str
    """A folder (searched to its end), a .tar, an .npz or .npy, or the name of a published set."""
    out: Path = Path("outliers.csv")
    """A line for each image, likely outliers first: path, entropy, outlier, group, similarity."""
    count: int = 20
    """Likely outliers to list: those whose similarity is spread most evenly over the other images."""
    similarity: float = 0.9
    """Cosine, of features from which their mean is taken, from which on two images are near-duplicates."""

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise ValueError(f"a similarity is above 0 and at most 1, got {self.similarity}")
        at_least(self, count=0)


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Write a trained backbone as a file that other libraries read without glf, with a model card beside it."""

    run: Path
    """A run's directory, or a backbone that glf has saved."""
    format: Format = "timm"
    """Who is to read it: timm (also Hugging Face's layout), torchvision, anybody (safetensors), onnxruntime (onnx)."""
    out: Path | None = None
    """The file, or the folder for it; <run>/export/<format> when not given."""


@dataclass(frozen=True, kw_only=True)
class ShardConfig:
    """Write images as WebDataset shards, which `glf pretrain` reads as a stream; goes on where it was stopped."""

    data: str
    """A source's name, or the path of a folder, a .tar, an .npz or an .npy."""
    out: Path = Path("shards")
    """The folder of the shards."""
    split: Literal["train", "test"] = "train"
    """Which split."""
    labels: Labels = "auto"
    """Take class folders as labels, or ignore them."""
    prior: str | None = None
    """Store this prior's row beside each image, for LPM: pixels, timm:<model>, run:<directory>, file:<array>."""
    prior_weights: Path | None = None
    """A local file with the weights of a timm: prior."""
    prior_width: int = 64
    """Width that the prior's features are reduced to."""
    prior_size: int | None = None
    """Side of the images that a timm: prior sees; the model's own when not given."""
    per_shard: int = 1000
    """Images in a shard."""
    seed: int = 0
    """Of the order of images over shards."""
    root: Path | None = None
    """Where named data sets lie; GLF_DATA or the user's cache when not given."""
    download: bool = False
    """Let a named data set, or the weights of a timm: prior, be downloaded."""
    device: str = "auto"
    """Where the prior is computed: auto, cpu, gpu, mps."""
    overwrite: bool = False
    """Delete the shards that the folder holds."""

    def __post_init__(self) -> None:
        at_least(self, per_shard=1, prior_width=1, prior_size=1)
