"""Annotated images as tensors for the detector."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from glf.evaluation.detect.annotations import Annotations, Scene
from glf.evaluation.detect.coco import decode_mask

Target = dict[str, Tensor]
Pair = tuple[Tensor, Target]


class DetectionDataset(Dataset[Pair]):
    """Image and target by index. With ``flips`` (training), ignored objects are removed and marked images flipped."""

    def __init__(self, data: Annotations, channels: int, *, masks: bool, flips: np.ndarray | None = None) -> None:
        self.data, self.channels, self.masks, self.flips = data, channels, masks, flips

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Pair:
        image, target = self._image(index), to_target(self.data.scenes[index], masks=self.masks)
        if self.flips is None:
            return image, target
        target = {key: value[~target["ignored"]] for key, value in target.items()}
        return flip(image, target) if self.flips[index] else (image, target)

    def _image(self, index: int) -> Float32[Tensor, "channel height width"]:
        pixels = torch.from_numpy(np.array(self.data.pixels(index))).permute(2, 0, 1).float() / 255
        if pixels.shape[0] > self.channels:
            name = self.data.root.path / self.data.scenes[index].name
            raise ValueError(f"{name} has {pixels.shape[0]} channels, the backbone takes {self.channels}")
        return pixels.expand(self.channels, -1, -1)  # greyscale images for a colour backbone


def to_target(scene: Scene, *, masks: bool) -> Target:
    """All annotations of an image: boxes, labels, flags of ignored objects; masks on request."""
    objects = scene.objects
    target = {
        "boxes": torch.from_numpy(scene.boxes),
        "labels": torch.tensor([one.label for one in objects], dtype=torch.int64),
        "ignored": torch.tensor([one.ignored for one in objects], dtype=torch.bool),
        "iscrowd": torch.tensor([one.crowd for one in objects], dtype=torch.int64),
    }
    if masks:
        decoded = [decode_mask(one, scene.height, scene.width) for one in objects]
        none = np.zeros((0, scene.height, scene.width), np.uint8)
        target["masks"] = torch.from_numpy(np.stack(decoded) if decoded else none)
    return target


def flip(image: Float[Tensor, "channel height width"], target: Target) -> Pair:
    """Flip image, boxes and masks horizontally.

    >>> flip(torch.zeros(1, 2, 10), {"boxes": torch.tensor([[1.0, 0.0, 4.0, 2.0]])})[1]["boxes"]
    tensor([[6., 0., 9., 2.]])
    """
    width = image.shape[-1]
    x0, y0, x1, y1 = target["boxes"].unbind(1)
    changed = {"boxes": torch.stack((width - x1, y0, width - x0, y1), dim=1)}
    if "masks" in target:
        changed["masks"] = target["masks"].flip(2)
    return image.flip(2), {**target, **changed}


def batches(
    data: Annotations, channels: int, batch_size: int, *, masks: bool, epoch_seed: list[int] | None, workers: int
) -> Iterator[tuple[list[Tensor], list[Target]]]:
    """One pass over the images: shuffled and randomly flipped by the seed; in order and unchanged without a seed."""
    order, flips = np.arange(len(data)), None
    if epoch_seed is not None:
        random = np.random.default_rng(epoch_seed)
        order, flips = random.permutation(order), random.random(len(data)) < 0.5
    chunks = [order[start : start + batch_size].tolist() for start in range(0, len(order), batch_size)]
    dataset = DetectionDataset(data, channels, masks=masks, flips=flips)
    loader: DataLoader[Pair] = DataLoader(dataset, batch_sampler=chunks, collate_fn=_collate, num_workers=workers)
    return iter(loader)


def _collate(pairs: list[Pair]) -> tuple[list[Tensor], list[Target]]:
    """Lists, because images differ in size."""
    return [image for image, _ in pairs], [target for _, target in pairs]
