"""Masks of what is salient: a folder of mask files beside the images, named like them."""

from pathlib import Path, PurePosixPath

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from glf.config.training import Store
from glf.data import sources
from glf.data.files import find
from glf.data.images import ImageSet
from glf.device import to_device

GREY = 128  # what takes the place of a background


def read_masks(folder: Path, data: str, images: ImageSet, *, size: int | None, store: Store = "auto") -> ImageSet:
    """A grey image for each image, white where that is salient: every image needs one, of its name but the ending."""
    if not Path(data).exists() or Path(data).suffix in (".npz", ".npy"):
        raise ValueError(f"masks are matched by the names of image files, and {data} has none")
    if not folder.exists():
        raise ValueError(f"no folder of masks at {folder}")
    wanted = _stems(Path(data), images)
    masks = sources.load(str(folder), "train", size=size, labels="none", store=store)
    found = _stems(folder, masks)
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise ValueError(f"{len(missing)} of {len(wanted)} images have no mask in {folder}: the first is {missing[0]}")
    if masks.size != images.size:
        raise ValueError(f"masks of {masks.size} do not fit images of {images.size}")
    if masks.channels != 1:
        raise ValueError(f"masks must be grey, and those in {folder} have colours")
    place = {name: i for i, name in enumerate(found)}
    return masks.select(np.array([place[name] for name in wanted]))


def _stems(path: Path, images: ImageSet) -> list[str]:
    """The names of the images, in their order, without endings."""
    skipped = {one.name for one in images.skipped}
    names = [entry.name for entry in find(path, "train").entries if entry.name not in skipped]
    return [str(PurePosixPath(name).with_suffix("")) for name in names]


def without_background(
    images: UInt8[Tensor, "batch channel height width"],
    masks: UInt8[Tensor, "batch 1 height width"],
    chosen: Bool[Tensor, " batch"],
) -> UInt8[Tensor, "batch channel height width"]:
    """The chosen images in grey wherever their mask is dark."""
    rows = to_device(chosen.nonzero().flatten(), images.device)
    shown = images.clone()
    shown[rows] = torch.where(masks[rows] > 127, images[rows], images.new_full((), GREY))
    return shown
