from functools import partial
from itertools import permutations

import pytest
import torch
from torch.nn import functional as F

import reference
from glf.similarity import (
    cell_centres,
    cross_correlation,
    expected_similarity,
    kl_divergence,
    match_cells,
    nearest_cells,
    off_diagonal,
    similarities,
    unified_log_sums,
    unified_loss,
)
from reference import draw


@pytest.mark.parametrize("n", [2, 3, 6])
def test_off_diagonal(n):
    reference.check(off_diagonal, reference.off_diagonal, draw(n, n, seed=n).abs())


def test_off_diagonal_of_several_views():
    views = draw(3, 4, 4)
    expected = torch.stack([off_diagonal(view) for view in views])
    torch.testing.assert_close(off_diagonal(views), expected, rtol=1e-12, atol=1e-12)


def test_similarities_and_their_mean():
    weights = draw(4, 3).softmax(1)

    def loops(z, entries):
        logits = [[reference.cos(x, e) / 0.3 for e in entries] for x in z]
        return -reference.mean(reference.dot(w, row) for w, row in zip(weights, logits, strict=True))

    reference.check(
        lambda z, entries: expected_similarity(weights, similarities(z, entries, 0.3)), loops, draw(4, 2), draw(3, 2)
    )


def test_kl_divergence_holds_its_target_fixed():
    target = draw(4, 3)

    def loops(logits):
        total = 0
        for p, q in zip(target, logits, strict=True):
            p, q = reference.softmax(p), reference.softmax(q)
            total = total + sum(a * (a.log() - b.log()) for a, b in zip(p, q, strict=True))
        return total / len(target)

    reference.check(lambda logits: kl_divergence(target, logits), loops, draw(4, 3, seed=1))
    moving = target.clone().requires_grad_()
    assert torch.autograd.grad(kl_divergence(moving, draw(4, 3)).sum() + 0 * moving.sum(), moving)[0].eq(0).all()


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (7, 4)], ids=str)
def test_cross_correlation(shape):
    reference.check(cross_correlation, reference.cross_correlation, *draw(2, *shape, seed=sum(shape)))


def test_both_parts_of_metaug_add_up_to_its_loss():
    z = draw(3, 4, 2)
    near, far = unified_log_sums(z, 5.0)
    torch.testing.assert_close((near + far + F.softplus(-(near + far))).mean(), unified_loss(z, 5.0))
    reference.check(partial(unified_loss, sharpness=5.0), partial(reference.unified, sharpness=5.0), z)


def test_metaug_with_two_views_is_infonce():
    z = draw(2, 5, 3)
    torch.testing.assert_close(unified_loss(z, 7.0), reference.nt_xent(*z, 2 / 7.0))


def test_metaugs_code_has_one_log_sum_exp_per_image():
    """The figures of docs/methods.md. jiangmengli/metaug, NCE/NCECriterion_MetAug.py, with the batch as negatives."""
    z = draw(3, 64, 128)
    u = F.normalize(z, dim=-1)
    pairs = torch.stack([16.0 * (1 + u[v] @ u[w].T) / 2 for v, w in permutations(range(3), 2)], 1)  # image, pair, image
    positive = pairs.diagonal(dim1=0, dim2=2)
    own = torch.eye(64, dtype=torch.bool).unsqueeze(1).expand_as(pairs)
    negative = pairs.masked_fill(own, -torch.inf).flatten(1)
    shared = F.softplus((-positive).logsumexp(0) + negative.logsumexp(1)).mean()
    assert float(shared) == pytest.approx(8.15, abs=5e-3)
    assert float(unified_loss(z, 16.0)) == pytest.approx(6.32, abs=5e-3)


def test_cell_centres_are_in_image_coordinates():
    boxes = torch.tensor([[0.5, 0.0, 1.0, 0.5], [1.0, 0.0, 0.5, 0.5]])  # the same box, once flipped
    plain, flipped = cell_centres(boxes, 4)
    assert plain.tolist() == [[0.625, 0.125], [0.875, 0.125], [0.625, 0.375], [0.875, 0.375]]
    assert flipped.tolist() == plain[[1, 0, 3, 2]].tolist()


def test_the_nearest_cells_come_first_with_their_candidates():
    distance = torch.tensor([[[3.0, 2.0], [0.5, 9.0], [7.0, 1.0]]])
    cell, candidate = nearest_cells(distance, 2)
    assert (cell.tolist(), candidate.tolist()) == ([[1, 2]], [[0, 1]])
    assert nearest_cells(distance, 9)[0].shape == (1, 3)  # no more than there are


def test_a_view_matched_with_itself_is_itself():
    cells = draw(3, 4, 2)
    a, b = match_cells(cells, cells, torch.cdist(cells, cells), 4)
    assert torch.equal(a, b)
    assert torch.equal(a.sort(1).values, cells.sort(1).values)
