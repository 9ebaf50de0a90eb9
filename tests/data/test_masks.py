"""Masks of what is salient: found by name, shown in some views."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glf.data import sources
from glf.data.augment.augment import augment
from glf.data.augment.policies import POLICIES, ViewPolicy
from glf.data.batches import EpochBatches, image_loader
from glf.data.masks import GREY, read_masks, without_background
from glf.types import Batch


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Four images in two classes; each mask is white in as many rows as the image is bright."""
    images, masks = tmp_path / "images", tmp_path / "masks"
    for i, name in enumerate(("a/1", "a/2", "b/1", "b/x.y")):
        for folder, ending, size in ((images, "png", 3), (masks, "bmp", 1)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((20, 20, size), 40 * (i + 1), np.uint8)
            if size == 1:
                pixels = np.where(np.arange(20)[:, None] < i + 1, 255, 0).astype(np.uint8) * np.ones((1, 20), np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}.{ending}")
    return images, masks


def test_masks_are_found_by_name(folders: tuple[Path, Path]) -> None:
    images = sources.load(str(folders[0]))
    masks = read_masks(folders[1], str(folders[0]), images, size=None)
    assert [int((mask > 0).all((1, 2)).sum()) for mask in masks.pixels[:]] == [1, 2, 3, 4]
    (batch,) = image_loader(images, EpochBatches(np.arange(4), 4, 0), prior=None, masks=masks)
    for row, image, mask in zip(batch.indices, batch.images, batch.mask, strict=True):
        assert int(image[0, 0, 0]) == 40 * (int(row) + 1)
        assert int((mask > 0).sum()) == 20 * (int(row) + 1)


def test_what_is_wrong_with_masks_is_said(folders: tuple[Path, Path], tmp_path: Path) -> None:
    images = sources.load(str(folders[0]))
    with pytest.raises(ValueError, match="no folder of masks"):
        read_masks(tmp_path / "none", str(folders[0]), images, size=None)
    with pytest.raises(ValueError, match="names of image files, and fashion-mini has none"):
        read_masks(folders[1], "fashion-mini", images, size=None)
    with pytest.raises(ValueError, match="masks must be grey"):
        read_masks(folders[0], str(folders[0]), images, size=None)
    (folders[1] / "b" / "1.bmp").unlink()
    with pytest.raises(ValueError, match=r"1 of 4 images have no mask in .*: the first is b/1"):
        read_masks(folders[1], str(folders[0]), images, size=None)


def test_a_background_is_hidden_where_it_is_chosen() -> None:
    images = torch.full((3, 3, 4, 4), 7, dtype=torch.uint8)
    masks = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    masks[:, :, 0] = 255
    shown = without_background(images, masks, torch.tensor([True, False, True]))
    assert torch.equal(shown[1], images[1])
    for i in (0, 2):
        assert (shown[i, :, 0] == 7).all()
        assert (shown[i, :, 1:] == GREY).all()
    assert (images == 7).all()


@pytest.mark.parametrize("side", [8, 64])
def test_views_hide_backgrounds_at_their_own_rate(side: int) -> None:
    plain = {"crop": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0, "jitter": 0, "grey": 0}
    recipe = (ViewPolicy(**plain, mask=1.0), ViewPolicy(**plain))  # type: ignore[arg-type]
    images = torch.full((4, 3, side, side), 255, dtype=torch.uint8)
    rows, masks = torch.arange(4), torch.zeros(4, 1, side, side, dtype=torch.uint8)
    batch = Batch(images, rows, rows, None, masks)
    hidden, shown = augment(batch, recipe, side, torch.Generator().manual_seed(0)).x
    torch.testing.assert_close(hidden, torch.full_like(hidden, GREY / 255), rtol=0, atol=1e-5)
    torch.testing.assert_close(shown, torch.ones_like(shown), rtol=0, atol=1e-5)


def test_without_masks_nothing_changes() -> None:
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    rows = torch.arange(4)
    views = [
        augment(Batch(images, rows, rows, None), POLICIES[name], 8, torch.Generator().manual_seed(0)).x
        for name in ("wmse", "salient")
    ]
    assert all(torch.equal(a, b) for a, b in zip(*views, strict=True))
