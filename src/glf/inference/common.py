"""From a model's name and a folder to rows of features: what every command here begins with."""

import csv
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from glf.config.inference import EncoderOptions
from glf.data.image_cache import cache_root
from glf.data.photos import open_photos
from glf.device import torch_device
from glf.files import atomic_write
from glf.malloc import retain_freed_memory
from glf.nn.embedded import Embedded, Encoder, embedded
from glf.nn.pretrained import is_library_model, pretrained
from glf.nn.prior import Pixels
from glf.nn.weights import load_backbone


def open_encoder(config: EncoderOptions) -> Encoder:
    """The backbone of a run or of a file, a model by name, or the pixels themselves."""
    if config.run == "pixels":
        return Encoder("pixels", Pixels(), None, 3)
    if is_library_model(config.run):
        backbone = pretrained(config.run, weights=config.weights, size=config.image_size, download=config.download)
    elif config.weights is not None or config.image_size is not None:
        raise ValueError(f"--weights and --image-size are for a model by name, and {config.run} has its own")
    else:
        backbone = load_backbone(Path(config.run))
    return Encoder(config.run, backbone, backbone.image_size, backbone.channels)


def compute_features(encoder: Encoder, photos: str, config: EncoderOptions, console: Console) -> Embedded:
    """Rows of all images of a source, from the cache as far as they are there; says what was skipped."""

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    device = torch_device(config.device)
    opened = open_photos(photos, size=encoder.size, download=config.download)
    with retain_freed_memory(device == "cpu"):
        found = embedded(
            encoder,
            opened,
            cache=cache_root() / "embeddings",
            device=device,
            batch_size=config.batch_size,
            say=say,
        )
    say(f"images    {photos}: {len(found.rows):,} rows of {found.rows.shape[1]} features by {encoder.name}")
    if found.skipped:
        say(f"skipped   {len(found.skipped):,} files, first {found.skipped[0].line(': ')}")
    return found


def write_csv(path: Path, header: Iterable[str], lines: Iterable[Iterable[object]]) -> None:
    """A table as text, whole or not at all."""
    with atomic_write(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        table.writerows(lines)
