"""The prior: a frozen encoder f_pre, which LPM reads. Its features are computed once, reduced, and cached.

A training step then costs one n x n distance matrix for the prior, whatever the size of the encoder.
"""

import hashlib
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glf.config.base import nearest
from glf.data.image_cache import cache_root
from glf.data.images import ImageSet
from glf.data.npy import explain_bad_array, load_array
from glf.files import atomic_write, exclusive_lock
from glf.nn.feature_cache import write_npy
from glf.nn.features import extract
from glf.nn.pretrained import ENCODERS, check_encoder, load_encoder

FIT_IMAGES = 50_000  # images on which the reduction is fitted, at most
PIXELS = 32  # px; larger images are scaled down for a pixel prior: distances between finer pixels say no more
KINDS = ("pixels", *ENCODERS, "file:<array>")


@runtime_checkable
class PriorConfig(Protocol):
    """The options of a prior, as PretrainConfig and ShardConfig have them."""

    @property
    def prior(self) -> str | None: ...
    @property
    def prior_weights(self) -> Path | None: ...
    @property
    def prior_width(self) -> int: ...
    @property
    def prior_size(self) -> int | None: ...
    @property
    def download(self) -> bool: ...


def check_prior(config: PriorConfig) -> None:
    """Raise an error for a prior that is unknown or unavailable, before the images are read, which may take an hour."""
    spec = config.prior or ""
    kind, _, rest = spec.partition(":")
    if kind == "file" and not Path(rest).is_file():
        raise FileNotFoundError(f"no prior at {rest}: --prior file:<array> is an .npy with one row for each image")
    known = [k.partition(":")[0] for k in KINDS]
    if kind in ("timm", "torchvision", "run"):
        check_encoder(spec, weights=config.prior_weights, download=config.download)
    elif spec != "pixels" and kind != "file":
        raise ValueError(f"unknown prior {spec!r}{nearest(kind, known)} (priors: {', '.join(KINDS)})")


def prior_features(
    config: PriorConfig, images: ImageSet, *, device: torch.device | str = "cpu", cache: Path | None = None
) -> np.ndarray:
    """Return the prior's features of every image, reduced to ``config.prior_width``: float32, memory-mapped.

    ``config.prior`` is ``pixels``, ``timm:<model>`` or ``torchvision:<model>`` (weights from a local file, from this
    machine's cache, or downloaded if that is allowed), ``run:<directory>`` (a backbone trained with glf) or
    ``file:<array>`` (an .npy with one row per image).
    """
    check_prior(config)
    spec, cache = config.prior or "", cache or cache_root() / "prior"
    kind, _, rest = spec.partition(":")
    if kind == "file":
        return _reduced(_from_file(Path(rest), len(images)), config.prior_width, cache, spec)
    encoder: nn.Module = Pixels()
    size = None
    if kind != "pixels":
        encoder = load_encoder(spec, weights=config.prior_weights, size=config.prior_size, download=config.download)
        size = encoder.image_size
        if images.channels > encoder.channels:
            raise ValueError(f"the prior {spec} takes {encoder.channels} channels, the images have {images.channels}")
    with exclusive_lock(cache / f"prior-{images.key}"):  # of runs that start together one computes and the others wait
        features = extract(encoder, images, cache=cache, size=size, device=device, batch_size=256, label="prior")
        return _reduced(features, config.prior_width, cache, spec)


def _from_file(path: Path, count: int) -> np.ndarray:
    with explain_bad_array(f"the prior {path} cannot be read as an .npy"):
        features: np.ndarray = load_array(path, np.ndarray)
    if not np.issubdtype(features.dtype, np.number):
        raise ValueError(f"the prior {path} is no array of numbers: it has values of type {features.dtype}")
    if features.ndim != 2 or features.shape[0] != count:
        raise ValueError(f"the prior {path} has shape {features.shape}: it needs one row for each of {count} images")
    return features


def _reduced(features: np.ndarray, width: int, cache: Path, spec: str) -> np.ndarray:
    """Reduce features to their principal components: distances survive, and steps cost the same for every prior."""
    if not np.isfinite(features).all():
        raise ValueError(f"the prior {spec} has values that are not finite")
    digest = hashlib.blake2b(np.ascontiguousarray(features).view(np.uint8).data, digest_size=8)
    digest.update(f"pca {width} {FIT_IMAGES} {features.shape} {features.dtype}".encode())
    path = cache / f"prior-{digest.hexdigest()}.npy"
    if not path.exists():
        from sklearn.decomposition import PCA

        some = np.random.default_rng(0).permutation(len(features))[:FIT_IMAGES]
        kept = min(width, *features[some].shape)
        pca = PCA(kept, random_state=0).fit(np.asarray(features[np.sort(some)], dtype=np.float32))
        with atomic_write(path) as partial:
            write_npy([pca.transform(np.asarray(features, dtype=np.float32))], len(features), partial)
    reduced: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return reduced


class Pixels(nn.Module):
    """The paper's identity prior: the pixels themselves; larger images are scaled down."""

    def __init__(self, size: int = PIXELS) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        if max(x.shape[-2:]) > self.size:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        return x.flatten(1)

    def extra_repr(self) -> str:
        return f"size={self.size}"
