import pytest
import torch

import reference
from glf.align.distance import unit_distance
from glf.align.predict import PredictTeacher, PredictView, TeacherDistance
from glf.types import Embeddings
from reference import draw, draw_fields


@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (7, 4)], ids=str)
def test_unit_distance_with_its_target_held_fixed(shape):
    prediction, target = draw(2, *shape)
    reference.check(lambda p: unit_distance(p, target), lambda p: reference.regression(p, target), prediction)


TERMS = {
    "predict_view": (PredictView(), lambda z, p, teacher: reference.simsiam(p, z.detach())),
    "predict_teacher": (2 * PredictTeacher(), lambda z, p, teacher: reference.byol(p, teacher.detach())),
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_move_the_prediction_and_never_its_target(name):
    term, loops = TERMS[name]
    fields = draw_fields()
    z, p, teacher = reference.same(
        lambda z, p, teacher: term(Embeddings(z=z, p=p, teacher=teacher)),
        loops,
        *(fields[name] for name in ("z", "p", "teacher")),
    )
    assert (p.abs() > 0).all()
    assert not z.any()
    assert not teacher.any()


def test_half_of_the_teacher_distance_is_one_minus_the_cosine():
    fields = draw_fields()
    z, teacher = reference.same(
        lambda z, teacher: (0.5 * TeacherDistance())(Embeddings(z=z, teacher=teacher)),
        lambda z, teacher: 1 + reference.mean(reference.cosine(z[v], teacher[1 - v].detach()) for v in (0, 1)),
        *(fields[name] for name in ("z", "teacher")),
    )
    assert (z.abs() > 0).all()
    assert not teacher.any()


def test_every_ordered_pair_of_views_has_equal_weight():
    fields = draw_fields(views=3)
    term = PredictView()(Embeddings(z=fields["z"], p=fields["p"]))
    pairs = [(v, w) for v in range(3) for w in range(3) if v != w]
    expected = reference.mean(reference.cosine(fields["p"][v], fields["z"][w]) for v, w in pairs)
    torch.testing.assert_close(term, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("term", "missing"), [(PredictView(), "p"), (PredictTeacher(), "teacher")])
def test_a_missing_field_is_named(term, missing):
    z0, z1 = draw(2, 4, 3)
    fields = dict.fromkeys(term.needs - {"z", missing}, (z0, z1))
    with pytest.raises(ValueError, match=f"'{missing}'.*pass {missing}="):
        term(z0, z1, **fields)
