import pytest
import torch

import reference
from glf.align.predict import PredictNeighbour
from glf.constrain.neighbour_positive import NearestNeighbours, NeighbourPartition, nearest_entries
from glf.types import Embeddings
from reference import draw, draw_fields


def test_nearest_entries():
    z, queue = draw(6, 4), draw(9, 4, seed=1)
    expected = reference.table(reference.nearest(x, queue) for x in z)
    assert nearest_entries(z.requires_grad_(), queue).equal(expected)
    assert not nearest_entries(z, queue).requires_grad


def test_neighbours_come_from_earlier_batches_of_the_first_view():
    transform, fields = NearestNeighbours(6), draw_fields()
    e = Embeddings(z=fields["z"], p=fields["p"])
    before = transform(e).neighbours
    after = transform(e).neighbours
    unit = torch.nn.functional.normalize(fields["z"], dim=2)
    assert not torch.allclose(before[0], unit[0])
    torch.testing.assert_close(after[0], unit[0])  # each is its own neighbour in the queue
    torch.testing.assert_close(transform.memory.keys[0], unit[0])


@pytest.mark.parametrize("term", [PredictNeighbour(0.1), NeighbourPartition(0.1), NeighbourPartition(0.1, within=True)])
def test_terms_move_the_prediction_only(term):
    z, p = draw(2, 5, 3).requires_grad_(), draw(2, 5, 3, seed=1).requires_grad_()
    e = NearestNeighbours(8)(Embeddings(z=z, p=p))
    term(e).backward()
    assert (p.grad.abs() > 0).all()
    assert z.grad is None


def test_within_also_repels_predictions_from_each_other():
    fields = draw_fields()
    e = NearestNeighbours(8)(Embeddings(z=fields["z"], p=fields["p"]))

    def loops(p):
        pairs = [(0, 1), (1, 0)]
        return reference.mean(reference.log_partition([*e.neighbours[w], *p[v]], 0.2) for v, w in pairs)

    def ours(p):
        moved = NearestNeighbours(8)(Embeddings(z=fields["z"], p=p))
        return NeighbourPartition(0.2, within=True)(moved)

    reference.same(ours, loops, fields["p"])
