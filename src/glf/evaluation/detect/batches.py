"""Annotated images as tensors: what the detector learns from, and what it is judged by."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from glf.evaluation.detect.annotations import Annotations, Scene
from glf.evaluation.detect.coco import mask

Target = dict[str, Tensor]
Pair = tuple[Tensor, Target]


class Pictures(Dataset[Pair]):
    """Image and target by row; in training, half of the images flipped and only what is learnt from."""

    def __init__(self, data: Annotations, channels: int, *, masks: bool, flips: np.ndarray | None = None) -> None:
        self.data, self.channels, self.masks, self.flips = data, channels, masks, flips

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> Pair:
        scene = self.data.scenes[row]
        image, found = self._image(row), target(scene, masks=self.masks)
        if self.flips is None:
            return image, found
        found = {key: value[~found["ignored"]] for key, value in found.items()}
        return flipped(image, found) if self.flips[row] else (image, found)

    def _image(self, row: int) -> Float32[Tensor, "channel height width"]:
        pixels = torch.from_numpy(np.array(self.data.pixels(row))).permute(2, 0, 1).float() / 255
        if pixels.shape[0] > self.channels:
            name = self.data.place.path / self.data.scenes[row].name
            raise ValueError(f"{name} has {pixels.shape[0]} channels, the backbone takes {self.channels}")
        return pixels.expand(self.channels, -1, -1)  # grey images to a backbone for colour


def target(scene: Scene, *, masks: bool) -> Target:
    """Everything annotated in an image: boxes, labels, what is ignored and why; outlines when asked for."""
    objects = scene.objects
    found = {
        "boxes": torch.from_numpy(scene.boxes),
        "labels": torch.tensor([one.label for one in objects], dtype=torch.int64),
        "ignored": torch.tensor([one.ignored for one in objects], dtype=torch.bool),
        "iscrowd": torch.tensor([one.crowd for one in objects], dtype=torch.int64),
    }
    if masks:
        drawn = [mask(one, scene.height, scene.width) for one in objects]
        blank = np.zeros((0, scene.height, scene.width), np.uint8)
        found["masks"] = torch.from_numpy(np.stack(drawn) if drawn else blank)
    return found


def flipped(image: Float[Tensor, "channel height width"], found: Target) -> Pair:
    """Left and right exchanged.

    >>> flipped(torch.zeros(1, 2, 10), {"boxes": torch.tensor([[1.0, 0.0, 4.0, 2.0]])})[1]["boxes"]
    tensor([[6., 0., 9., 2.]])
    """
    width = image.shape[-1]
    x0, y0, x1, y1 = found["boxes"].unbind(1)
    changed = {"boxes": torch.stack((width - x1, y0, width - x0, y1), dim=1)}
    if "masks" in found:
        changed["masks"] = found["masks"].flip(2)
    return image.flip(2), {**found, **changed}


def batches(
    data: Annotations, channels: int, batch_size: int, *, masks: bool, epoch_seed: list[int] | None, workers: int
) -> Iterator[tuple[list[Tensor], list[Target]]]:
    """All images once: in random order, flipped at random, by a seed; without one, in their own order as they are."""
    order, flips = np.arange(len(data)), None
    if epoch_seed is not None:
        random = np.random.default_rng(epoch_seed)
        order, flips = random.permutation(order), random.random(len(data)) < 0.5
    chunks = [order[start : start + batch_size].tolist() for start in range(0, len(order), batch_size)]
    pictures = Pictures(data, channels, masks=masks, flips=flips)
    loader: DataLoader[Pair] = DataLoader(pictures, batch_sampler=chunks, collate_fn=_apart, num_workers=workers)
    return iter(loader)


def _apart(pairs: list[Pair]) -> tuple[list[Tensor], list[Target]]:
    """Images differ in size, so that a batch is a list."""
    return [image for image, _ in pairs], [found for _, found in pairs]
