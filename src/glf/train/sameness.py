"""Checks before the first step: all processes have the same config and code, and a resumed run has its images."""

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np

import glf
from glf.config.training import ResolvedPretrainConfig
from glf.data.images import DecodeOnRead, ImageSet
from glf.distributed import disagreements, same_everywhere
from glf.train.callbacks import RunLog

MAY_DIFFER = {"root", "download", "store", "workers"}  # how a node gets its images
STORED, DECODED = 20_000, 256  # images with pixels that are compared on --resume, if they are stored or to be decoded


class SameConfig(L.Callback):
    """Refuses processes with different options or different code, as a stale script on one node would start them."""

    def __init__(self, config: ResolvedPretrainConfig) -> None:
        self.config = config

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        own = {**dict(_options(self.config)), "the code of glf": code_version()}
        numbers = [_number(value) for value in own.values()]
        differing = [list(own.items())[at] for at in disagreements(numbers, device=trainer.strategy.root_device)]
        if differing:
            shown = ", ".join(f"{name} ({value!r} on this rank)" for name, value in differing)
            raise ValueError(f"the processes disagree on {shown}: start the same command and version on every node")


def code_version() -> str:
    """The version of glf and a hash of its source files."""
    digest = hashlib.blake2b(digest_size=8)
    root = Path(glf.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}".encode() + path.read_bytes())
    return f"{glf.__version__} {digest.hexdigest()}"


def _options(config: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _options(value)
        elif field.name not in MAY_DIFFER:
            yield field.name, value


def _number(value: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=7).digest(), "big")


class SameImages(L.Callback):
    """Refuses other images on --resume or in another process: their number, or pixels in those that are compared.

    Indices and the position in an epoch mean nothing on other data. The key of the data changes whenever a file does,
    and also when files are copied; pixels tell the two apart. Of image files that are decoded in every epoch, and of
    very many images, only some are compared: the log says how many.
    """

    def __init__(self, images: ImageSet, *, total: int, train: int, key: str, log: RunLog) -> None:
        self.images, self.total, self.train, self.key, self.log_line = images, total, train, key, log

    @cached_property
    def pixels(self) -> list[str]:
        """A hash of each compared image."""
        most = DECODED if isinstance(self.images.pixels, DecodeOnRead) else STORED
        count = len(self.images)
        rows = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))
        return [
            hashlib.blake2b(np.ascontiguousarray(self.images.pixels[row]).data, digest_size=6).hexdigest()
            for row in rows.tolist()
        ]

    def state_dict(self) -> dict[str, Any]:
        return {"images": self.total, "train": self.train, "key": self.key, "pixels": self.pixels}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        restore = "restore the data (skipped.txt lists unreadable files), or start again with --overwrite"
        if (self.total, self.train) != (state_dict["images"], state_dict["train"]):
            raise ValueError(
                f"the run started with {state_dict['images']:,} images ({state_dict['train']:,} for training), and now"
                f" there are {self.total:,} ({self.train:,}): {restore}"
            )
        if self.key == state_dict["key"]:
            return
        before = state_dict["pixels"]
        changed = sum(one != other for one, other in zip(before, self.pixels, strict=False))
        if changed or len(before) != len(self.pixels):
            raise ValueError(f"{changed:,} of {len(before):,} compared images differ from those of the run: {restore}")
        compared = "all" if len(before) == self.total else f"{len(before):,} of {self.total:,}"
        self.log_line(
            f"data      the files are not those at the start of the run: copied or changed; the pixels of {compared}"
            " images were compared and are the same",
            "yellow",
        )

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        shared = "put the same data on every node, or on storage that all share, and do not modify it during the run"
        if not same_everywhere(self.total, self.train, device=module.device):
            raise ValueError(f"processes disagree on the number of images ({self.total:,} on this rank): {shared}")
        if same_everywhere(_number(self.key), device=module.device):
            return
        if not same_everywhere(_number(self.pixels), device=module.device):  # copies of files have another key
            raise ValueError(f"processes disagree on the images ({self.images.name} on this rank): {shared}")
