"""How a backbone is used once it is trained: rows of images, neighbours, outliers, files for other libraries."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glf.config.bounds import at_least

Format = Literal["timm", "torchvision", "safetensors", "onnx"]


@dataclass(frozen=True, kw_only=True)
class Using:
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
class EmbedConfig(Using):
    """Write a row of features for every image; the same command goes on where it was stopped."""

    photos: str
    """A folder (searched to its end), a .tar, an .npz or .npy, or the name of a published set."""
    out: Path = Path("embeddings.npy")
    """The file to write: .npy (paths in a .json beside it), .csv, or .parquet."""
    map: bool = False
    """Add two columns for a picture: t-SNE of up to 5,000 images, the first two principal components of more."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Using):
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
class OutliersConfig(Using):
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
