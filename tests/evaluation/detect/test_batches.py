"""Batches of the detector: flips, ignored objects, order, channels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glf.evaluation.detect.batches import DetectionDataset, batches, flip
from glf.evaluation.detect.run import read_boxes


def test_a_flip_moves_boxes_and_masks_with_the_image(folder: Path) -> None:
    data = read_boxes(folder, "train")
    straight = DetectionDataset(data, 3, masks=True, flips=np.zeros(8, bool))
    turned = DetectionDataset(data, 3, masks=True, flips=np.ones(8, bool))
    for index in range(len(data)):
        (image, target), (mirrored, found) = straight[index], turned[index]
        torch.testing.assert_close(mirrored, image.flip(2))
        for shape, box in zip(found["masks"], found["boxes"], strict=True):
            ys, xs = torch.nonzero(shape, as_tuple=True)
            assert box.tolist() == [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
        torch.testing.assert_close(flip(mirrored, found)[1]["boxes"], target["boxes"])


def test_ignored_objects_are_removed_for_training_and_kept_for_scoring(folder: Path) -> None:
    data = read_boxes(folder, "train")
    scene = data.scenes[0]
    crowd = replace(scene.objects[0], crowd=True, name="a crowd")
    data = replace(data, scenes=[replace(scene, objects=(crowd, *scene.objects))])
    training = DetectionDataset(data, 3, masks=True, flips=np.zeros(1, bool))[0][1]
    scoring = DetectionDataset(data, 3, masks=True)[0][1]
    assert len(training["boxes"]) == len(training["masks"]) == len(scene.objects)
    assert scoring["iscrowd"].tolist() == [1] + [0] * len(scene.objects)


def test_an_epoch_has_every_image_once_in_its_own_order(folder: Path) -> None:
    data = read_boxes(folder, "train")

    def seen(seed: list[int] | None) -> list[torch.Tensor]:
        loaded = batches(data, 3, 3, masks=False, epoch_seed=seed, workers=0)
        return [image for images, _ in loaded for image in images]

    first, again, second, plain = seen([0, 0]), seen([0, 0]), seen([0, 1]), seen(None)
    assert len(first) == len(second) == len(plain) == 8
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for index, image in enumerate(plain):
        np.testing.assert_array_equal((image * 255).round().byte().permute(1, 2, 0).numpy(), data.pixels(index))
        assert sum(torch.equal(image, one) or torch.equal(image.flip(2), one) for one in first) == 1


def test_greyscale_images_fit_any_backbone_and_colour_images_need_three_channels(folder: Path) -> None:
    data = read_boxes(folder, "train")
    with pytest.raises(ValueError, match=r"0001\.png has 3 channels, the backbone takes 1"):
        DetectionDataset(data, 1, masks=False)[0]
    path = folder / data.scenes[0].name
    Image.open(path).convert("L").save(path)
    assert [tuple(DetectionDataset(data, channels, masks=False)[0][0].shape) for channels in (1, 3)] == [
        (1, 96, 96),
        (3, 96, 96),
    ]
