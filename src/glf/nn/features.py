"""Feature extraction: evaluation, priors, the online probe, embed, search and outliers all extract features here.

``encode`` yields features batch by batch. ``extract`` (of an image set) and ``extract_source`` (of images that are
decoded on the way) also cache them, keyed by the data and the weights, and resume after a kill.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glf.data.batches import to_tensor
from glf.data.decode import SizeLimits, quiet, side_limits, stored_side
from glf.data.decode_all import check_share_of_bad, decode_each
from glf.data.images import ImageSet
from glf.data.source import UNREAD, Skipped, Source
from glf.nn.feature_cache import FeatureCache

Pixels = np.ndarray | Sequence[np.ndarray]  # (image, height, width, channel), or such images one by one
EACH_ALONE = "each image alone"  # in the keys of caches: an image's side used to depend on the others


class NotFiniteError(ValueError):
    """Features that are not finite."""


class Encoder(NamedTuple):
    """A model that computes features of images."""

    name: str
    module: nn.Module
    size: int | None  # side of its input; None if it takes any
    channels: int
    sides: SizeLimits | None = None  # of decoded images; by default those for a crop of ``size``
    grid: tuple[int, int, int] | None = None  # rows, columns and features of a map, if it computes maps (nn/maps.py)

    @property
    def limits(self) -> SizeLimits:
        return self.sides or side_limits(self.size)

    @property
    def fingerprint(self) -> str:
        """16 hex digits of all that its features of an image depend on."""
        return fingerprint(self.module, self.size, EACH_ALONE)

    def fitted(self, image: np.ndarray) -> np.ndarray:
        """Return decoded pixels with the encoder's channels; a grey image fills all of them."""
        if image.shape[2] > self.channels:
            raise ValueError(
                f"some images are in colour, and {self.name} was trained on grey ones: use a backbone for colour"
            )
        return np.broadcast_to(image, (*image.shape[:2], self.channels))


class SourceFeatures(NamedTuple):
    """Features of all decodable images of a source."""

    paths: list[str]
    features: np.ndarray  # float32 (image, feature), memory-mapped; maps: float16 (image, row, column, feature)
    skipped: tuple[Skipped, ...]


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
    """Return features of an image set, float32 (image, feature); those in the cache are not computed again."""

    def pixels(start: int) -> Generator[np.ndarray | Skipped, None, None]:
        for at in range(start, len(images), batch_size):
            yield from images.pixels[at : at + batch_size]

    cached = FeatureCache.open(cache / f"{label}-{images.key}-{fingerprint(encoder, size)}")
    if cached.seen < len(images):
        with cached.exclusively(), encoding(encoder, size=size, device=device) as features_of:
            cached.extend(pixels(cached.seen), len(images), features_of, batch_size, label)
    return cached.features()


def extract_source(
    encoder: Encoder,
    source: Source,
    *,
    cache: Path,
    device: torch.device | str = "cpu",
    batch_size: int = 128,
    say: Callable[[str], None] = lambda text: None,
) -> SourceFeatures:
    """Return features of all decodable images of a source; those in the cache are not computed again.

    Images are decoded batch by batch and are not cached themselves. The features of an image do not depend on the
    others: each has the side that it would have in a set of images like it.
    """
    cached = FeatureCache.open(cache / f"{source.key}-{encoder.fingerprint}", bits=32 if encoder.grid is None else 16)
    if cached.seen < len(source) or _any_readable_again(cached, source):
        with (
            cached.exclusively(),
            encoding(encoder.module, size=encoder.size, device=device) as features_of,
            quiet(),
        ):
            if _any_readable_again(cached, source):
                cached.restart()
            elif 0 < cached.seen < len(source):
                say(f"resuming after {cached.seen:,} of {len(source):,} images")
            if cached.seen < len(source):
                images = _decoded(source, cached, encoder)
                cached.extend(images, len(source), features_of, batch_size, "embedding")
    skipped = tuple(Skipped(path_text(source, i), why) for i, why in cached.skipped)
    if cached.count == 0:
        raise ValueError(f"none of the {len(source)} images can be read, first {skipped[0].line(': ')}")
    bad = {i for i, _ in cached.skipped}
    paths = [path_text(source, i) for i in range(len(source)) if i not in bad]
    features = cached.features()
    if encoder.grid is not None:
        features = features.reshape(-1, *encoder.grid)
    return SourceFeatures(paths, features, skipped)


def _decoded(source: Source, cached: FeatureCache, encoder: Encoder) -> Generator[np.ndarray | Skipped, None, None]:
    """Yield the images that are not in the cache; ValueError if more than half of all are bad."""
    skipped = [Skipped(path_text(source, i), why) for i, why in cached.skipped]
    with closing(decode_each(source, range(cached.seen, len(source)), encoder.limits)) as images:
        for i, image in enumerate(images, start=cached.seen):
            if isinstance(image, Skipped):
                skipped.append(Skipped(path_text(source, i), image.why))
                check_share_of_bad(skipped, source)
                yield image
            else:
                yield encoder.fitted(image)


def path_text(source: Source, i: int) -> str:
    """Where the user finds an image, as text that any file format can hold."""
    return source.path(i).encode("utf-8", "backslashreplace").decode()  # a file's name need not be valid text


def _any_readable_again(cached: FeatureCache, source: Source) -> bool:
    """Whether a file that was skipped because it could not be read (permissions, network) can be read now."""
    for i, why in cached.skipped:
        if why.startswith(UNREAD):
            try:
                source.read(i)
            except (OSError, ValueError):
                continue
            return True
    return False


def encode(
    encoder: nn.Module,
    images: ImageSet,
    *,
    indices: np.ndarray | None = None,
    size: int | None = None,
    device: torch.device | str = "cpu",
    batch_size: int = 512,
) -> Iterator[np.ndarray]:
    """Yield features batch by batch, of all images or of some."""
    indices = np.arange(len(images)) if indices is None else indices
    with encoding(encoder, size=size, device=device) as features_of:
        for start in range(0, len(indices), batch_size):
            yield features_of(images.pixels[indices[start : start + batch_size]])


def encode_all(
    encoder: nn.Module,
    images: ImageSet,
    indices: np.ndarray,
    *,
    size: int | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return the features of some images, on the CPU."""
    return torch.from_numpy(np.concatenate(list(encode(encoder, images, indices=indices, size=size, device=device))))


@contextmanager
def encoding(
    encoder: nn.Module, *, size: int | None = None, device: torch.device | str = "cpu"
) -> Iterator[Callable[[Pixels], np.ndarray]]:
    """Provide a function from stored pixels to features; the encoder returns to its mode afterwards.

    Its images are one array, or a list of arrays of any shapes.
    """

    def features_of(pixels: Pixels) -> np.ndarray:
        with torch.inference_mode():  # only here: between batches the caller may need gradients
            out = encoder(_input(pixels, size, device)).float().cpu()
        check_finite(out)
        found: np.ndarray = out.numpy()
        return found

    training = encoder.training
    encoder.eval().to(device)
    encoder.to(memory_format=torch.channels_last)
    try:
        yield features_of
    finally:
        encoder.train(training)


def check_finite(features: Tensor) -> None:
    """Raise NotFiniteError for features with nan or inf."""
    if not features.isfinite().all():
        raise NotFiniteError("the encoder gives features that are not finite: its training diverged")


def _input(pixels: Pixels, size: int | None, device: torch.device | str) -> Tensor:
    """Return images as the encoder's input, values from 0 to 1; those of one shape are resized together."""
    if not isinstance(pixels, np.ndarray) and len({image.shape for image in pixels}) == 1:
        pixels = np.stack(pixels)
    if isinstance(pixels, np.ndarray):
        return resize_to(to_tensor(pixels).to(device).float() / 255, size)
    assert size is not None, "images of several sides need an encoder with a size"
    x = torch.empty(len(pixels), pixels[0].shape[2], size, size, device=device)
    x = x.to(memory_format=torch.channels_last)
    for shape in sorted({image.shape for image in pixels}):
        same = [i for i, image in enumerate(pixels) if image.shape == shape]
        x[same] = _input(np.stack([pixels[i] for i in same]), size, device)
    return x


def resize_to(x: Tensor, size: int | None) -> Tensor:
    """Resize images to the encoder's size; of images that were stored with a margin for it, take the centre."""
    height, width = x.shape[-2:]
    if size is None or (height, width) == (size, size):
        return x
    if height == width == stored_side(size):
        start = (height - size) // 2
        return x[..., start : start + size, start : start + size]
    return F.interpolate(x, (size, size), mode="bilinear", antialias=True, align_corners=False)


def fingerprint(encoder: nn.Module, *extra: object) -> str:
    """Return 16 hex digits of the encoder's structure and weights, and of ``extra``."""
    digest = hashlib.blake2b(repr((encoder, extra)).encode(), digest_size=8)
    for module in encoder.modules():  # includes non-persistent buffers: mean and std of the images
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
