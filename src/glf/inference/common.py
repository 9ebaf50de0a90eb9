"""Set-up shared by embed, search and outliers: the encoder, and its features of all images."""

from pathlib import Path

from rich.console import Console

from glf.config.inference import EncoderOptions
from glf.data.decode import side_limits
from glf.data.image_cache import cache_root
from glf.data.sources import find_source
from glf.device import torch_device
from glf.malloc import retain_freed_memory
from glf.nn.features import Encoder, SourceFeatures, extract_source
from glf.nn.pretrained import is_library_model, pretrained
from glf.nn.prior import PIXELS, Pixels
from glf.nn.weights import load_backbone
from glf.ui import say


def open_encoder(options: EncoderOptions) -> Encoder:
    """Load the backbone of a run or of a file, a timm or torchvision model, or the pixels themselves."""
    if options.run == "pixels":
        return Encoder("pixels", Pixels(), PIXELS, 3, side_limits(None))
    if is_library_model(options.run):
        backbone = pretrained(options.run, weights=options.weights, size=options.image_size, download=options.download)
    elif options.weights is not None or options.image_size is not None:
        raise ValueError(
            f"--weights and --image-size only apply to timm: and torchvision: models; {options.run} already defines"
            " both"
        )
    else:
        backbone = load_backbone(Path(options.run))
    return Encoder(options.run, backbone, backbone.image_size, backbone.channels)


def compute_features(encoder: Encoder, data: str, options: EncoderOptions, console: Console) -> SourceFeatures:
    """Compute features of all images, or read them from the cache; print how many, and what was skipped."""
    device = torch_device(options.device)
    source = find_source(data, "all", download=options.download)
    with retain_freed_memory(device == "cpu"):
        found = extract_source(
            encoder,
            source,
            cache=cache_root() / "embeddings",
            device=device,
            batch_size=options.batch_size,
            say=lambda text: say(console, text),
        )
    count, *shape = found.features.shape
    each = " x ".join(str(number) for number in shape)
    say(console, f"images    {data}: {count:,} images, {each} features each by {encoder.name}")
    if found.skipped:
        say(console, f"skipped   {len(found.skipped):,} files, first {found.skipped[0].line(': ')}")
    return found
