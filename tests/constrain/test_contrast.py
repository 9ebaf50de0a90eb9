from functools import partial

import pytest

import reference
from glf.constrain.contrast import LogPartition, log_partition
from glf.types import Embeddings
from reference import draw


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("shape", [(2, 1), (3, 2), (7, 4)], ids=str)
def test_log_partition(shape, temperature):
    loops = partial(reference.log_partition, temperature=temperature)
    reference.check(partial(log_partition, temperature=temperature), loops, draw(*shape))


@pytest.mark.parametrize("views", [1, 2, 3])
def test_the_term_repels_all_views_of_all_images(views):
    (gradient,) = reference.same(
        lambda z: LogPartition(0.3)(Embeddings(z=z)),
        lambda z: reference.log_partition([x for view in z for x in view], 0.3),
        draw(views, 4, 3),
    )
    assert (gradient.abs() > 0).all()
