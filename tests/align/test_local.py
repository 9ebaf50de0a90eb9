import torch

from glf.similarity import locations, matched, nearest_cells
from reference import draw


def test_locations_are_the_centres_of_cells_in_the_image():
    boxes = torch.tensor([[0.5, 0.0, 1.0, 0.5], [1.0, 0.0, 0.5, 0.5]])  # the same box, once flipped
    plain, flipped = locations(boxes, 4)
    assert plain.tolist() == [[0.625, 0.125], [0.875, 0.125], [0.625, 0.375], [0.875, 0.375]]
    assert flipped.tolist() == plain[[1, 0, 3, 2]].tolist()


def test_the_nearest_cells_come_first_with_their_candidates():
    distance = torch.tensor([[[3.0, 2.0], [0.5, 9.0], [7.0, 1.0]]])
    cell, candidate = nearest_cells(distance, 2)
    assert (cell.tolist(), candidate.tolist()) == ([[1, 2]], [[0, 1]])
    assert nearest_cells(distance, 9)[0].shape == (1, 3)  # no more than there are


def test_matches_of_a_view_with_itself_are_itself():
    cells = draw(3, 4, 2)
    a, b = matched(cells, cells, torch.cdist(cells, cells), 4)
    assert torch.equal(a, b)
    assert torch.equal(a.sort(1).values, cells.sort(1).values)
