import pytest
import torch

import reference
from glf.constrain.centring import CentredCodes, centred_codes
from glf.types import Embeddings
from reference import draw, draw_fields


def test_centred_codes():
    def loops(scores, centre):
        rows = [[(s - m) / 0.3 for s, m in zip(row, centre, strict=True)] for row in scores]
        return reference.table(reference.softmax(row) for row in rows)

    reference.check(lambda scores, centre: centred_codes(scores, centre, 0.3), loops, draw(4, 3), draw(3, seed=1))


def embeddings(seed: int = 0, views: int = 2) -> Embeddings:
    fields = draw_fields(views=views, seed=seed)
    names = ("z", "teacher", "prototypes", "teacher_prototypes")
    return Embeddings(**{name: fields[name].requires_grad_() for name in names})


def test_codes_are_the_teachers_without_gradient():
    e = CentredCodes()(embeddings(views=4))
    assert e.codes.shape == (4, 6, 5)
    assert not e.codes.requires_grad
    scores = [[reference.cos(x, c) / 0.04 for c in e.teacher_prototypes] for x in e.teacher[1]]
    expected = reference.table(reference.softmax(row) for row in scores)
    torch.testing.assert_close(e.codes[1], expected.detach(), rtol=1e-10, atol=1e-12)


def test_the_centre_is_that_of_the_steps_before():
    transform = CentredCodes(old=0.75)
    first, second = embeddings(), embeddings(seed=30)
    transform(first)
    scores = [reference.cos(x, c) for view in first.teacher for x in view for c in first.teacher_prototypes]
    mean = torch.stack(scores).reshape(12, 5).mean(0).detach()
    torch.testing.assert_close(transform.memory.centre, 0.25 * mean)
    fresh = CentredCodes()(second)
    assert not torch.allclose(transform(second).codes, fresh.codes)


def test_the_centre_stays_without_gradients():
    transform = CentredCodes()
    transform(embeddings())
    before = transform.memory.centre.clone()
    with torch.no_grad():
        transform(embeddings(seed=30))
    transform.eval()
    transform(embeddings(seed=30))
    assert transform.memory.centre.equal(before)


@pytest.mark.parametrize(("warmup", "temperatures"), [(0, [0.07] * 3), (1, [0.07] * 3), (3, [0.04, 0.055, 0.07])])
def test_the_temperature_rises_once_per_epoch(warmup, temperatures):
    transform = CentredCodes(sharp=0.07, sharp_start=0.04, warmup=warmup)
    found = []
    for epoch in (0.9, 1.9, 2.1):
        transform.epoch = epoch
        found.append(transform.temperature())
    assert found == pytest.approx(temperatures)
