from functools import partial
from itertools import combinations

import pytest

import reference
from glf.align.distance import MSE, Cosine, Diagonal, cosine, diagonal, mse
from glf.types import Embeddings
from reference import draw

OF_TWO_VIEWS = {
    "mse": (mse, reference.mse),
    "cosine": (partial(cosine, temperature=0.3), partial(reference.cosine, temperature=0.3)),
}


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (7, 4)], ids=str)
@pytest.mark.parametrize("name", OF_TWO_VIEWS)
def test_functions_of_two_views(name, shape):
    reference.check(*OF_TWO_VIEWS[name], *draw(2, *shape, seed=sum(shape)))


@pytest.mark.parametrize("dim", [1, 5])
def test_diagonal(dim):
    reference.check(diagonal, reference.diagonal, draw(dim, dim))


PAIRWISE = {
    "mse": (MSE(), reference.mse),
    "cosine": (Cosine(0.2), partial(reference.cosine, temperature=0.2)),
    "diagonal": (Diagonal(), lambda x, y: reference.diagonal(reference.cross_correlation(x, y))),
}


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("name", PAIRWISE)
def test_terms_average_over_pairs_of_views(name, views):
    term, of_pair = PAIRWISE[name]
    (gradient,) = reference.same(
        lambda z: term(Embeddings(z=z)),
        lambda z: reference.mean(of_pair(x, y) for x, y in combinations(z, 2)),
        draw(views, 5, 3),
    )
    assert (gradient.abs() > 0).all()


def test_cosine_does_not_depend_on_lengths():
    z0, z1 = draw(2, 6, 4)
    assert cosine(3 * z0, 0.1 * z1).item() == pytest.approx(cosine(z0, z1).item(), rel=1e-12)
