"""Settings of the commands that use a trained backbone, and of glf shard."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from glf.config.bounds import check_options
from glf.config.training import Labels

MAX_PARTS = 10**6  # a folder of files with more is slow everywhere
Format = Literal["timm", "torchvision", "safetensors", "onnx"]


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """The encoder of embed, search and outliers."""

    run: str
    """Run directory, backbone file saved by glf, library model (timm:resnet18, torchvision:resnet50), or pixels."""
    weights: Path | None = None
    """Weights file of a library model (.safetensors, .pt, .ckpt); default: the library's pretrained weights."""
    image_size: int | None = None
    """Image size of a library model; default: the model's own."""
    download: bool = False
    """Allow downloads of a named data set or one of the Hub and of a library model's weights."""
    batch_size: int = 128
    """Batch size of feature extraction."""
    device: str = "auto"
    """auto, cpu, gpu or mps."""

    def __post_init__(self) -> None:
        check_options(self)


class Part(NamedTuple):
    """One of several parts of the images, numbered from 1."""

    number: int
    of: int

    def share(self, count: int) -> range:
        """The numbers of the things, of ``count`` in order, that belong to this part.

        >>> Part(1, 3).share(8), Part(2, 3).share(8), Part(3, 3).share(8)
        (range(0, 2), range(2, 5), range(5, 8))
        """
        return range(count * (self.number - 1) // self.of, count * self.number // self.of)


def parse_part(text: str) -> Part:
    """
    >>> parse_part("17/1000")
    Part(number=17, of=1000)
    """
    given = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    part = Part(int(given[1]), int(given[2])) if given else Part(0, 0)
    if not 1 <= part.number <= part.of:
        raise ValueError(f"part must be a number from 1 and how many there are, like 17/1000, got {text!r}")
    if part.of > MAX_PARTS:
        raise ValueError(f"part must be one of at most {MAX_PARTS:,}, got {text!r}")
    return part


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(EncoderOptions):
    """Write the features of every image to a file; an interrupted command continues where it stopped."""

    data: str
    """Folder (searched recursively), .tar, .csv of paths, .npz, .npy, .parquet, hf:user/name, or name of a data set;
    with --part also shards."""
    out: str | Path = Path("embeddings.npy")
    """Output file: .npy (the paths are in <name>.glf.json), .csv, or .parquet; with --part a folder or a URL."""
    features: Literal["pooled", "map"] = "pooled"
    """A vector for each image (pooled), or one for each cell or patch of it, as float16 (map); .npy or .parquet."""
    map: bool = False
    """Add two columns with a 2-d projection: t-SNE of up to 5,000 images, else the first two principal components."""
    part: str | None = None
    """Only this part of the images, like 17/1000, as a Parquet file in the folder --out; a finished part is kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        remote = "://" in str(self.out)
        if self.part is None:
            if remote:
                raise ValueError(f"--out {self.out} is a URL, which takes parts only: add --part 1/1")
            return
        parse_part(self.part)
        if self.map:
            raise ValueError("--map needs the features of all images: leave it out with --part")
        if self.features == "map":
            raise ValueError("--part writes one vector of each image: leave out --features map")
        if Path(self.out).suffix in (".npy", ".csv", ".parquet"):
            raise ValueError(f"--part writes Parquet files to a folder: give a folder with --out, not {self.out}")


@dataclass(frozen=True, kw_only=True)
class SearchConfig(EncoderOptions):
    """List the images of a folder that are most similar to one or more query images (cosine similarity)."""

    images: tuple[str, ...]
    """One or more query images, then the folder or .tar to search."""
    k: int = 10
    """Number of images listed per query."""
    out: Path | None = None
    """Also write the list to a .csv: query, rank, similarity, path."""


@dataclass(frozen=True, kw_only=True)
class OutliersConfig(EncoderOptions):
    """List likely outliers and groups of near-duplicates."""

    data: str
    """Folder (searched recursively), .tar, .csv of paths, .npz, .npy, .parquet, hf:user/name, or name of a data set."""
    out: Path = Path("outliers.csv")
    """Output file, a line per image, likely outliers first: path, entropy, outlier, group, similarity."""
    count: int = 20
    """Number of likely outliers: images with the most uniform neighbour distributions."""
    similarity: float = 0.9
    """Cosine similarity of centred features from which two images are near-duplicates."""


def check_licence(name: str | None) -> None:
    """Refuse what cannot be a licence's name on the hub."""
    if name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise ValueError(f"--license takes a name of Hugging Face's hub, such as mit or apache-2.0, got {name!r}")


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Write a trained backbone as a file that other libraries load without glf, with a model card."""

    run: Path
    """Run directory, or backbone file saved by glf."""
    format: Format = "timm"
    """Target: timm (also the Hugging Face layout), torchvision, safetensors (plain PyTorch), onnx (onnxruntime)."""
    out: Path | None = None
    """File or folder to write; default: <run>/export/<format>."""
    license: str | None = None
    """Licence of the weights by its name on Hugging Face's hub (mit, apache-2.0, cc-by-nc-4.0, ...), for the card."""

    def __post_init__(self) -> None:
        check_options(self)
        check_licence(self.license)


@dataclass(frozen=True, kw_only=True)
class PushConfig:
    """Upload a trained backbone to Hugging Face's hub, from where timm loads it by name."""

    run: Path
    """Run directory, or backbone file saved by glf."""
    name: str
    """Name on the hub: USER/NAME or ORGANISATION/NAME."""
    dry_run: bool = False
    """Only write the folder that would be uploaded; contact nothing."""
    public: bool = False
    """Everyone may read a repository that this creates; default: private."""
    license: str | None = None
    """Licence of the weights by its name on the hub (mit, apache-2.0, cc-by-nc-4.0, ...), for the card."""
    out: Path | None = None
    """Folder of the files; default: <run>/export/hub."""

    def __post_init__(self) -> None:
        check_options(self)
        check_licence(self.license)


@dataclass(frozen=True, kw_only=True)
class ShardConfig:
    """Write images as WebDataset shards, which `glf pretrain` streams; an interrupted command continues."""

    data: str
    """Name of a data set, hf:user/name of the Hugging Face Hub, or path of a folder, .tar, .npz, .npy or .parquet."""
    out: Path = Path("shards")
    """Folder of the shards."""
    split: Literal["train", "test"] = "train"
    """Split to write."""
    labels: Labels = "auto"
    """Use class folders or a column of labels, or ignore them."""
    prior: str | None = None
    """Also store the features of this prior, for LPM: pixels, timm:<model>, run:<directory>, file:<array>."""
    prior_weights: Path | None = None
    """Local weights file of a timm: prior."""
    prior_width: int = 64
    """Number of principal components kept of the prior's features."""
    prior_size: int | None = None
    """Image size of a timm: prior; default: the model's own."""
    per_shard: int = 1000
    """Images per shard."""
    seed: int = 0
    """Seed of the images' order."""
    root: Path | None = None
    """Folder of the named data sets; default: $GLF_DATA or the user's cache."""
    download: bool = False
    """Allow downloads of a named data set or one of the Hub and of a prior's weights."""
    device: str = "auto"
    """Device that computes the prior: auto, cpu, gpu or mps."""
    overwrite: bool = False
    """Delete the shards in the folder first."""

    def __post_init__(self) -> None:
        check_options(self)
