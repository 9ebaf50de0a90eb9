import torch

import reference
from glf.align.mean_view import MeanDistance, mean_cosine, mean_distance
from glf.types import Embeddings
from reference import draw


def test_mean_distance_with_a_gradient_through_the_centre():
    def loops(z):
        middle = reference.centre(z)
        return reference.mean(reference.mse(view, middle) for view in z)

    reference.check(lambda z: mean_distance(z, z.mean(0)), loops, draw(3, 4, 2))


def test_the_centre_is_that_of_the_full_size_views():
    def loops(z):
        middle = reference.centre(z, 2)
        return reference.mean(reference.mse(view, middle) for view in z)

    (gradient,) = reference.same(lambda z: MeanDistance()(Embeddings(z=z, full=2)), loops, draw(4, 5, 3))
    assert (gradient.abs() > 0).all()
    z = draw(4, 5, 3)
    torch.testing.assert_close(MeanDistance()(Embeddings(z=z, full=4)), MeanDistance()(Embeddings(z=z)))


def test_mean_cosine():
    def loops(z):
        middle = reference.centre(z)
        return reference.mean(reference.cosine(view, middle) for view in z)

    reference.check(mean_cosine, loops, draw(3, 4, 2))
