"""How images become shards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glf.config.bounds import at_least
from glf.config.training import Labels


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
