import pytest
import torch

from glf.align.relations import Invariance
from glf.methods import parse
from glf.types import Embeddings
from reference import draw_fields


def test_invariance_is_zero_for_equal_views():
    fields = draw_fields()
    z, teacher = (fields[name][:1].repeat(2, 1, 1) for name in ("z", "teacher"))
    assert float(Invariance()(Embeddings(z=z, teacher=teacher))) == pytest.approx(0, abs=1e-12)
    assert float(Invariance()(Embeddings(z=fields["z"], teacher=fields["teacher"]))) > 0.01


def test_ressl_refuses_small_crops():
    fields = draw_fields()
    e = Embeddings(z=torch.cat((fields["z"], fields["z"])), teacher=fields["teacher"])
    with pytest.raises(ValueError, match="the last view, which must be of full size"):
        parse("ressl").build(queue=8)(e)
