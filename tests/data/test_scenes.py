"""Scenes of garments: fixed by the seed, the whole garment visible, moved as asked, and hard for raw pixels."""

import math

import numpy as np
import torch

from glf.data.scenes import PIECE, SIDE, add_piece, moved, scenes
from glf.data.sources import load_images
from glf.measure.knn import knn_predict


def test_scenes_are_fixed_by_the_seed_and_differ_between_images() -> None:
    garments = load_images("fashion-mini").pixels[:50, :, :, 0]
    one, again, other = (scenes(garments, seed) for seed in (0, 0, 1))
    assert one.shape == (50, SIDE, SIDE, 1)
    assert one.dtype == np.uint8
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    same = scenes(np.repeat(garments[:1], 20, 0), 0)
    assert len(np.unique(same.reshape(20, -1), axis=0)) == 20, "every image has a place of its own"


def test_a_garment_goes_where_it_is_sent() -> None:
    """A dot in the middle of the upper edge, turned by a quarter, is in the middle of the left or right edge."""
    x = torch.zeros(2, 1, 28, 28)
    x[:, :, 1:4, 12:16] = 1
    size = torch.full((2,), 28 / SIDE)  # its own size
    centre = torch.tensor([[0.0, 0.0], [0.1, -0.2]])
    found = moved(x, size, torch.zeros(2), centre)
    rows, columns = (np.average(np.indices((SIDE, SIDE))[i], weights=found[0, 0]) for i in (0, 1))
    margin = (SIDE - 28) / 2
    assert abs(rows - (2 + margin)) < 0.1
    assert abs(columns - (13.5 + margin)) < 0.1
    shifted = [np.average(np.indices((SIDE, SIDE))[i], weights=found[1, 0]) for i in (0, 1)]
    assert abs(shifted[1] - columns - 0.1 * SIDE / 2) < 0.1
    assert abs(shifted[0] - rows + 0.2 * SIDE / 2) < 0.1
    turned = moved(x[:1], size[:1], torch.tensor([math.pi / 2]), centre[:1])
    row, column = (np.average(np.indices((SIDE, SIDE))[i], weights=turned[0, 0]) for i in (0, 1))
    assert abs(row - (SIDE - 1) / 2) < 0.1
    assert abs(abs(column - (SIDE - 1) / 2) - (13.5 - 2)) < 0.1
    half = moved(x[:1], size[:1] / 2, torch.zeros(1), centre[:1])
    assert float(half.sum()) < 0.35 * float(found[0].sum()), "half the size, a quarter of the area"


def test_pieces_only_brighten_a_square_of_the_ground() -> None:
    garments = torch.from_numpy(load_images("fashion-mini").pixels[:40, :, :, 0]).float().div(255).unsqueeze(1)
    ground = torch.full((40, 1, SIDE, SIDE), 0.2)
    before = ground.clone()
    add_piece(ground, garments, torch.ones(40), torch.Generator().manual_seed(0))
    assert (ground >= before).all()
    changed = ground[:, 0] > before[:, 0]
    assert changed.any((1, 2)).float().mean() > 0.6, "most pieces are not black"
    for one in changed[changed.any(2).any(1)]:
        rows, columns = one.any(1).nonzero(), one.any(0).nonzero()
        assert rows.max() - rows.min() < PIECE
        assert columns.max() - columns.min() < PIECE


def test_the_data_set_keeps_labels_and_is_hard_for_pixels() -> None:
    garments, train = load_images("fashion-mini"), load_images("fashion-scenes")
    test = load_images("fashion-scenes", "test")
    assert (len(train), len(test), train.size, train.channels) == (10_000, 2_000, (SIDE, SIDE), 1)
    assert np.array_equal(train.targets, garments.targets)
    assert train.classes == garments.classes
    accuracies = []
    for images in (garments, train):
        x = torch.from_numpy(images.pixels[:4000].reshape(4000, -1) / np.float32(255))
        y = torch.from_numpy(images.targets[:4000])
        accuracies.append(float((knn_predict(x[:3000], y[:3000], x[3000:], 5) == y[3000:]).double().mean()))
    assert accuracies[0] > 0.75
    assert accuracies[1] < 0.4
