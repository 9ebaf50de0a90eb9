"""The frozen encoder f_pre: each image seen once, its features reduced, the rows cached.

A training step then pays one n x n distance for the prior, whatever the encoder's size.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glf.config.base import nearest
from glf.data.images import ImageSet
from glf.files import exclusive_lock
from glf.nn.features import extract, write_features
from glf.nn.pretrained import check_pretrained, pretrained
from glf.nn.weights import check_backbone, load_backbone

FIT_IMAGES = 50_000  # the reduction is fitted on at most so many
PIXELS = 32  # a pixel prior sees images at most this large: distances of finer pixels say no more
KINDS = ("pixels", "timm:<model>", "run:<directory>", "file:<array>")


def check_prior(spec: str, weights: Path | None = None, *, download: bool = False) -> None:
    """Refuses a prior that cannot be had, before the images are read, which may take an hour."""
    kind, _, rest = spec.partition(":")
    if kind == "file" and not Path(rest).is_file():
        raise FileNotFoundError(f"no prior at {rest}: --prior file:<array> is an .npy with one row for each image")
    if kind == "run":
        check_backbone(Path(rest))
    elif kind == "timm":
        check_pretrained(spec, weights=weights, download=download)
    elif spec != "pixels" and kind != "file":
        known = [k.partition(":")[0] for k in KINDS]
        raise ValueError(f"unknown prior {spec!r}{nearest(kind, known)} (priors: {', '.join(KINDS)})")


def prior_rows(
    spec: str,
    images: ImageSet,
    *,
    cache: Path,
    width: int = 64,
    weights: Path | None = None,
    size: int | None = None,
    download: bool = False,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """float32 (image, width): the prior's features of every image, reduced, memory-mapped.

    ``spec`` is ``pixels``, ``timm:<model>`` (its weights from a local file, from this machine's
    cache, or fetched if that is allowed), ``run:<directory>`` (a
    backbone that we trained) or ``file:<array>`` (an .npy with one row per image).
    """
    check_prior(spec, weights, download=download)
    kind, _, rest = spec.partition(":")
    if kind == "file":
        return _reduced(_from_file(Path(rest), len(images)), width, cache, spec)
    if spec == "pixels":
        encoder: nn.Module = Pixels()
        fit = None
    elif kind == "timm":
        encoder = pretrained(spec, weights=weights, size=size, download=download)
        fit = encoder.image_size
    else:
        encoder = load_backbone(Path(rest))
        fit = encoder.image_size
        if images.channels != encoder.channels:
            raise ValueError(f"the prior {spec} takes {encoder.channels} channels, the images have {images.channels}")
    with exclusive_lock(
        cache / f"prior-{images.key}"
    ):  # runs that start together: the first sees the images, the others wait
        rows = extract(encoder, images, cache=cache, size=fit, device=device, batch_size=256, label="prior")
        return _reduced(rows, width, cache, spec)


def _from_file(path: Path, count: int) -> np.ndarray:
    try:
        rows: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"the prior {path} cannot be read as an .npy ({error})") from error
    if not isinstance(rows, np.ndarray) or not np.issubdtype(rows.dtype, np.number):
        raise ValueError(f"the prior {path} is no single array of numbers")
    if rows.ndim != 2 or rows.shape[0] != count:
        raise ValueError(f"the prior {path} has shape {rows.shape}: it needs one row for each of {count} images")
    return rows


def _reduced(rows: np.ndarray, width: int, cache: Path, spec: str) -> np.ndarray:
    """Principal components, fitted on a part: distances survive, the step's cost does not grow with the prior."""
    if not np.isfinite(rows).all():
        raise ValueError(f"the prior {spec} holds values that are not finite")
    digest = hashlib.blake2b(np.ascontiguousarray(rows).view(np.uint8).data, digest_size=8)
    digest.update(f"pca {width} {FIT_IMAGES} {rows.shape} {rows.dtype}".encode())
    path = cache / f"prior-{digest.hexdigest()}.npy"
    if not path.exists():
        from sklearn.decomposition import PCA

        some = np.random.default_rng(0).permutation(len(rows))[:FIT_IMAGES]
        kept = min(width, *rows[some].shape)
        pca = PCA(kept, random_state=0).fit(np.asarray(rows[np.sort(some)], dtype=np.float32))
        write_features([pca.transform(np.asarray(rows, dtype=np.float32))], len(rows), path)
    reduced: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return reduced


class Pixels(nn.Module):
    """The paper's identity prior: the pixels themselves, of images that are scaled down if they are large."""

    def __init__(self, size: int = PIXELS) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        if max(x.shape[-2:]) > self.size:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        return x.flatten(1)

    def extra_repr(self) -> str:
        return f"size={self.size}"
