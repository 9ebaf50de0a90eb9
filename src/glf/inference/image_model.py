"""glf.load: an encoder with its preprocessing, as one torch module from images to features."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from glf.config.bounds import MAX_WORKERS
from glf.config.inference import EncoderOptions
from glf.data.batches import to_tensor
from glf.data.decode import quiet
from glf.data.given import as_images, as_tensor
from glf.device import cores
from glf.inference.common import open_encoder
from glf.nn.backbone import Backbone
from glf.nn.features import Encoder, check_finite, resize_to
from glf.nn.maps import backbone_of, feature_maps


def load(
    run: str | Path,
    *,
    weights: str | Path | None = None,
    image_size: int | None = None,
    download: bool = False,
    batch_size: int = 128,
) -> "ImageModel":
    """Load an encoder with its preprocessing, in evaluation mode on the CPU.

    ``run`` is what ``glf embed`` takes: a run directory, a backbone file, ``timm:<model>``, ``torchvision:<model>`` or
    ``pixels``; ``weights``, ``image_size`` and ``download`` apply to library models. ``batch_size`` is the number of
    images that are decoded and encoded at a time.

    >>> model = load("pixels")
    >>> model(np.zeros((2, 28, 28), np.uint8)).shape
    torch.Size([2, 3072])
    """
    options = EncoderOptions(
        run=str(run),
        weights=None if weights is None else Path(weights),
        image_size=image_size,
        download=download,
        batch_size=batch_size,
    )
    return ImageModel(open_encoder(options), batch_size)


class ImageModel(nn.Module):
    """From images to features, one row per image, with the preprocessing of ``glf embed``.

    An image is a path, the bytes of a file, or a PIL image; or an array (height, width, channel) or tensor (channel,
    height, width), of uint8 or of floats from 0 to 1. Give one, a list, or a batch as an array or tensor. Photos are
    decoded to a square as for ``glf embed``; arrays and tensors are scaled to the encoder's size, like an .npy file.

    In evaluation mode, the default, there are no gradients except to a tensor that requires them, and long lists are
    computed ``batch_size`` images at a time. In training mode gradients reach the weights, and all images given are
    one batch.
    """

    def __init__(self, encoder: Encoder, batch_size: int = 128) -> None:
        super().__init__()
        self.name, self.image_size, self.channels = encoder.name, encoder.size, encoder.channels
        self.limits, self.batch_size = encoder.limits, batch_size
        self.backbone = encoder.module.to(memory_format=torch.channels_last)
        self.eval()

    def forward(self, images: Any) -> Float[Tensor, "image feature"]:
        """Return the features of the images."""
        return self._compute(self.backbone, images)

    def maps(self, images: Any) -> Float[Tensor, "image row column feature"]:
        """Return the features of each cell or patch of the images, which ``glf embed --features map`` writes."""
        return self._compute(partial(feature_maps, backbone_of(self.name, self.backbone)), images)

    def _compute(self, network: Callable[[Tensor], Tensor], images: Any) -> Tensor:
        gradients = self.training or (isinstance(images, Tensor) and images.requires_grad)
        with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
            given = as_images(images)
            step = len(given) if gradients else self.batch_size
            parts = (given[at : at + step] for at in range(0, len(given), step))
            out = torch.cat([network(batch).float() for batch in self._batches(parts)])
        if not gradients:
            check_finite(out)
        return out

    def _batches(self, parts: Iterator[Any]) -> Iterator[Tensor]:
        """Yield the input of the network for each part of the images."""
        for part in parts:
            if isinstance(part, Tensor):
                yield self._input(part)
            elif isinstance(part, np.ndarray):
                yield self._input(to_tensor(np.array(part)))  # a copy: torch refuses read-only arrays
            else:
                yield self._stacked(self._decoded(part))

    def _decoded(self, images: list[Any]) -> list[Tensor]:
        """Decode by as many threads as there are cores; by one if an image is given twice, because PIL reads lazily."""
        distinct = len({id(image) for image in images}) == len(images)
        with quiet(), ThreadPoolExecutor(min(MAX_WORKERS, cores()) if distinct else 1) as pool:
            return list(pool.map(lambda image: as_tensor(image, self.channels, self.limits), images))

    def _stacked(self, images: list[Tensor]) -> Tensor:
        if len({(image.shape, image.dtype) for image in images}) == 1:
            return self._input(torch.stack(images).contiguous(memory_format=torch.channels_last))
        return torch.cat([self._input(image[None]) for image in images])

    def _input(self, images: Tensor) -> Tensor:
        """Move images to the model's device, and scale values and sizes as ``glf embed`` does."""
        if images.shape[1] > self.channels:
            raise ValueError(f"images with {images.shape[1]} channels, and {self.name} was trained on grey ones")
        if images.dtype == torch.uint8:
            x = images.to(self.device).float() / 255
        elif images.is_floating_point():
            low, high = images.detach().aminmax()
            if not 0 <= low <= high <= 1:
                raise ValueError(
                    f"images with values from {low:g} to {high:g}: give uint8, or floats from 0 to 1 (the model"
                    " normalises them itself)"
                )
            x = images.to(self.device, torch.float32)
        else:
            raise ValueError(f"images of type {images.dtype}: give uint8, or floats from 0 to 1")
        x = resize_to(x, self.image_size).to(self._any_tensor().dtype)
        return x if len(x[0]) == self.channels else x.expand(-1, self.channels, -1, -1)

    @property
    def device(self) -> torch.device:
        """Where the model is; images are moved there."""
        return self._any_tensor().device

    @property
    def width(self) -> int:
        """Number of features."""
        if isinstance(self.backbone, Backbone):
            return self.backbone.width
        assert self.image_size is not None, "pixels are scaled to one size"
        return self.channels * self.image_size**2

    def _any_tensor(self) -> Tensor:
        return next(chain(self.parameters(), self.buffers()), torch.empty(0))

    def extra_repr(self) -> str:
        return f"{self.name}, image_size={self.image_size}"
