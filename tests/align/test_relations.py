import pytest
import torch

import reference
from glf.align.relations import Invariance
from glf.methods import parse
from glf.similarity import divergence, expected_similarity, similarities
from glf.types import Embeddings
from reference import draw, draw_fields


def test_similarities_and_their_mean():
    weights = draw(4, 3).softmax(1)

    def loops(z, entries):
        logits = [[reference.cos(x, e) / 0.3 for e in entries] for x in z]
        return -reference.mean(reference.dot(w, row) for w, row in zip(weights, logits, strict=True))

    reference.check(
        lambda z, entries: expected_similarity(weights, similarities(z, entries, 0.3)), loops, draw(4, 2), draw(3, 2)
    )


def test_divergence_holds_its_target_fixed():
    target = draw(4, 3)

    def loops(logits):
        total = 0
        for p, q in zip(target, logits, strict=True):
            p, q = reference.softmax(p), reference.softmax(q)
            total = total + sum(a * (a.log() - b.log()) for a, b in zip(p, q, strict=True))
        return total / len(target)

    reference.check(lambda logits: divergence(target, logits), loops, draw(4, 3, seed=1))
    moving = target.clone().requires_grad_()
    assert torch.autograd.grad(divergence(moving, draw(4, 3)).sum() + 0 * moving.sum(), moving)[0].eq(0).all()


def test_views_that_agree_are_invariant():
    fields = draw_fields()
    z, teacher = (fields[name][:1].repeat(2, 1, 1) for name in ("z", "teacher"))
    assert float(Invariance()(Embeddings(z=z, teacher=teacher))) == pytest.approx(0, abs=1e-12)
    assert float(Invariance()(Embeddings(z=fields["z"], teacher=fields["teacher"]))) > 0.01


def test_relations_are_not_taught_by_small_crops():
    fields = draw_fields()
    e = Embeddings(z=torch.cat((fields["z"], fields["z"])), teacher=fields["teacher"])
    with pytest.raises(ValueError, match="the last view, which must be of full size"):
        parse("ressl").build(queue=8)(e)
