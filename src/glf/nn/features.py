"""The only extractor: a backbone over a set of images, once, into memory-mapped rows.

Rows are keyed by the data and by the weights, so that nothing stale is ever read again.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional as F

from glf.data.batches import to_tensor
from glf.data.images import ImageSet
from glf.files import atomic_write


def extract(
    encoder: nn.Module,
    images: ImageSet,
    *,
    cache: Path,
    size: int | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
    label: str = "features",
) -> np.ndarray:
    """float32 (image, feature): read from the cache when this encoder has seen these images before."""
    path = cache / f"{label}-{images.key}-{fingerprint(encoder, size)}.npy"
    if not path.exists():
        batches = encode(encoder, images, size=size, device=device, batch_size=batch_size)
        write_features(_with_progress(batches, len(images), label), len(images), path)
    # Copied on write: torch takes no array that it must not change, and nobody changes this one.
    stored: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    return stored


def write_features(batches: Iterable[np.ndarray], count: int, path: Path) -> None:
    """So many float32 rows into an .npy file, as they come.

    Not through a memory map: where the disk is full, writing to one kills the process without a word.
    """
    with atomic_write(path) as partial, open(partial, "wb") as file:
        written = 0
        for rows in batches:
            if written == 0:
                header = {"descr": "<f4", "fortran_order": False, "shape": (count, rows.shape[1])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(rows, dtype="<f4").data)
            written += len(rows)
        assert written == count > 0, "images are never empty"


def _with_progress(batches: Iterator[np.ndarray], count: int, label: str) -> Iterator[np.ndarray]:
    """The same batches, with a bar where there is a terminal."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=count)
        for rows in batches:
            yield rows
            bar.advance(task, len(rows))


def encode(
    encoder: nn.Module,
    images: ImageSet,
    *,
    rows: np.ndarray | None = None,
    size: int | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
) -> Iterator[np.ndarray]:
    """Features batch by batch, of all images or of some rows."""
    rows = np.arange(len(images)) if rows is None else rows
    with encoding(encoder, size=size, device=device) as features_of:
        for start in range(0, len(rows), batch_size):
            yield features_of(images.pixels[rows[start : start + batch_size]])


@contextmanager
def encoding(
    encoder: nn.Module, *, size: int | None = None, device: torch.device | str = "cpu"
) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """What makes features of stored pixels; the encoder is put back into its mode afterwards."""

    def features_of(pixels: np.ndarray) -> np.ndarray:
        with torch.inference_mode():  # not around the whole: the caller's own gradients are its own affair
            x = to_tensor(pixels).to(device)
            out: np.ndarray = encoder(resize_to(x.float() / 255, size)).float().cpu().numpy()
        if not np.isfinite(out).all():
            raise ValueError("the encoder gives features that are not finite: its training diverged")
        return out

    training = encoder.training
    encoder.eval().to(device)
    encoder.to(memory_format=torch.channels_last)
    try:
        yield features_of
    finally:
        encoder.train(training)


def resize_to(x: Tensor, size: int | None) -> Tensor:
    """Images at the encoder's size: the centre of what was stored with a margin of a seventh, else resized."""
    height, width = x.shape[-2:]
    if size is None or (height, width) == (size, size):
        return x
    if height == width == round(size * 8 / 7):
        start = (height - size) // 2
        return x[..., start : start + size, start : start + size]
    return F.interpolate(x, (size, size), mode="bilinear", antialias=True, align_corners=False)


def fingerprint(encoder: nn.Module, *extra: object) -> str:
    """16 hex digits of the encoder's structure and weights."""
    digest = hashlib.blake2b(repr((encoder, extra)).encode(), digest_size=8)
    for module in encoder.modules():  # buffers that no state dict holds count too: mean and std of the images
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
