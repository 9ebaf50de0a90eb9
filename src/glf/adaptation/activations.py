"""Activations of the frozen trunk, computed once for several augmented views of each image, and read in every epoch.

Row i of the array has the activations of image i as it is, then those of its augmented views: float16, memory-mapped.
Training reads two views of each image; the probe and the final comparison read the image as it is.
"""

import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from glf.config.training import Colour, ResolvedAdaptConfig
from glf.data.augment.augment import augment
from glf.data.augment.policies import ViewPolicy
from glf.data.batches import EpochBatches, memmap_handle, open_memmap, to_tensor, whole_batch_loader
from glf.data.images import ImageSet
from glf.nn.backbone import Backbone
from glf.nn.cut import Halves, Trunk
from glf.nn.feature_cache import FeatureCache
from glf.nn.features import fingerprint, resize_to
from glf.nn.norms import folded
from glf.types import Batch

VIEWS = 8  # views of each image, if the disk has room and there are not too many images
MANY_VIEWS = 400_000  # views of all images together: more would take a CPU longer than an hour
DISK_SHARE = 0.5  # of the free disk that activations may take
VERSION = 1  # raise it whenever the same image would get other activations: caches are keyed by it
BATCH = 64  # images of one forward pass; part of the key, because it seeds the views


class Encoder(NamedTuple):
    """The encoder that is adapted, with trainable parameters as ``--train`` says."""

    backbone: Backbone
    halves: Halves | None  # trunk and tail, if only the tail is trained
    activations: np.ndarray | None = None  # of the trunk, if they are cached


def planned_views(given: int | None, images: int, kinds: int, view_bytes: int, free: int) -> tuple[int, str]:
    """Number of cached views of each image, and why: as given, or as many as disk and time allow.

    ``kinds`` is the number of views in the augmentation policy: there are equally many of each. Without room for one of
    each kind there are none: the trunk then runs in every epoch.

    >>> planned_views(None, 5_000, 2, 8_000, 10**12)
    (8, '8 views of each image, 0.4 GB')
    >>> planned_views(None, 5_000, 2, 8_000, 500_000_000)
    (4, '4 views of each image, 0.2 GB: the disk has 0.5 GB free')
    >>> planned_views(None, 5_000, 2, 8_000, 10_000)[0]
    0
    """
    most, why = VIEWS if given is None else given, ""
    if given is None and images * most > MANY_VIEWS:
        most, why = MANY_VIEWS // images, f": there are {images:,} images"
    room = int(free * DISK_SHARE) // (images * view_bytes) - 1
    if given is not None and room < given:
        raise ValueError(
            f"{given} views of {images:,} images need {images * (given + 1) * view_bytes / 1e9:.1f} GB, and half of the"
            f" free disk is {free * DISK_SHARE / 1e9:.1f} GB: fewer --views, or another disk with GLF_CACHE"
        )
    if room < most:
        most, why = room, f": the disk has {free / 1e9:.1f} GB free"
    views = max(0, most // kinds * kinds)
    if not views:
        return 0, "none, the trunk runs in every epoch" + (why if given is None or given >= kinds else "")
    return views, f"{views} views of each image, {images * (views + 1) * view_bytes / 1e9:.1f} GB{why}"


def free_disk(folder: Path) -> int:
    """Free bytes of the disk that the folder is on, or will be on."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def activation_cache(
    cache: Path, trunk: Trunk, images: ImageSet, policy: tuple[ViewPolicy, ...], config: ResolvedAdaptConfig
) -> FeatureCache:
    """Open the cache of a run's activations, complete or not."""
    own = (VERSION, policy, config.colours, config.image_size, config.views, config.seed, BATCH)
    return FeatureCache.open(cache / f"{images.key}-{fingerprint(trunk, *own)}", bits=16)


def compute_activations(
    cached: FeatureCache,
    trunk: Trunk,
    images: ImageSet,
    policy: tuple[ViewPolicy, ...],
    config: ResolvedAdaptConfig,
    device: torch.device | str,
) -> np.ndarray:
    """Return the activations (image, 1 + view, ...); those in the cache are not computed again."""
    assert config.image_size is not None
    assert config.views is not None
    size, rounds = config.image_size, config.views // len(policy)
    trunk.eval().to(device)
    trunk.to(memory_format=torch.channels_last)
    with torch.no_grad():
        shape = tuple(trunk(torch.zeros(1, trunk.channels, size, size, device=device)).shape[1:])

    def pixels(start: int) -> Generator[np.ndarray, None, None]:
        for at in range(start, len(images), BATCH):
            yield from images.pixels[at : at + BATCH]

    def flat_activations(images: list[np.ndarray]) -> np.ndarray:
        views = batch_views(
            np.stack(images), policy, size, rounds, config.colours, seed=(config.seed, cached.seen), device=device
        )
        with torch.inference_mode():
            found = [faster(x.contiguous(memory_format=torch.channels_last)).half().cpu() for x in views]
        out: np.ndarray = torch.stack(found, 1).contiguous().flatten(1).numpy()
        if not np.isfinite(out).all():
            raise ValueError("the trunk's activations do not fit into float16: use --views 0")
        return out

    if cached.seen < len(images):
        faster = folded(
            trunk, torch.rand(2, trunk.channels, size, size, generator=torch.Generator().manual_seed(0)).to(device)
        )
        faster.to(memory_format=torch.channels_last)
        with cached.exclusively():
            cached.extend(pixels(cached.seen), len(images), flat_activations, BATCH, "trunk activations")
    return cached.features().reshape(len(images), 1 + config.views, *shape)


def batch_views(
    pixels: np.ndarray,
    policy: tuple[ViewPolicy, ...],
    size: int,
    rounds: int,
    colours: Colour,
    *,
    seed: tuple[int, ...],
    device: torch.device | str,
) -> list[Tensor]:
    """The images as they are, then ``rounds`` times the views of the policy."""
    raw = to_tensor(pixels).to(device)
    numbers = torch.arange(len(raw))
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
    views = [resize_to(raw.float() / 255, size)]
    for _ in range(rounds):
        views += augment(Batch(raw, numbers, numbers, None), policy, size, generator, colours).x
    return views


class EpochViews(EpochBatches):
    """Batches of one epoch as rows (image, first view, second view, ...): one cached view of each kind.

    With ``clean``, the image as it is comes before its views. Like the order of the images, the views depend on seed
    and epoch only.
    """

    def __init__(self, *args: Any, views: int, kinds: int, clean: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.views, self.kinds, self.clean = views, kinds, clean

    def __iter__(self) -> Generator[np.ndarray, None, None]:
        random = np.random.default_rng([self.seed, self.epoch, 1])
        rounds = random.integers(0, self.views // self.kinds, (len(self) * self.batch_size, self.kinds))
        columns = 1 + rounds * self.kinds + np.arange(self.kinds)  # column 0 is the image as it is
        if self.clean:
            columns = np.pad(columns, ((0, 0), (1, 0)))
        own = self.batch_size // self.world
        first = self.first[1] if self.epoch == self.first[0] else 0
        for number, indices in enumerate(super().__iter__(), start=first):
            start = number * self.batch_size + self.rank * own
            yield np.column_stack((indices, columns[start : start + own]))


class ActivationReader(Dataset[Batch]):
    """Reads the activations of a batch; its ``images`` are (batch, view, ...) instead of pixels."""

    def __init__(self, activations: np.ndarray, targets: np.ndarray, prior: np.ndarray | None) -> None:
        self.activations, self.targets, self.prior = activations, targets, prior

    def __getstate__(self) -> dict[str, Any]:
        return {name: memmap_handle(value) for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: open_memmap(value) for name, value in state.items()})

    def __getitem__(self, rows: np.ndarray) -> Batch:
        indices, views = rows[:, 0], rows[:, 1:]
        return Batch(
            images=torch.from_numpy(self.activations[indices[:, None], views]),
            target=torch.from_numpy(self.targets[indices]),
            indices=torch.from_numpy(np.ascontiguousarray(indices)),
            prior=None if self.prior is None else torch.from_numpy(np.ascontiguousarray(self.prior[indices])),
        )


def activation_loader(reader: ActivationReader, batches: EpochViews, *, workers: int, pin: bool) -> DataLoader[Batch]:
    """Batches of activations; read by the training process itself unless there are workers."""
    batch_bytes = (
        batches.batch_size // batches.world * (batches.kinds + batches.clean) * reader.activations[0, 0].nbytes
    )
    return whole_batch_loader(reader, batches, batch_bytes=batch_bytes, workers=workers, pin=pin)
