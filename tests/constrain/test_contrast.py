from functools import partial

import pytest

import reference
from glf.constrain.contrast import (
    LogPartition,
    debiased_partition,
    entry_partition,
    log_partition,
    polarisation,
    queue_partition,
)
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


@pytest.mark.parametrize("hardness", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("same", [0.0, 0.1, 0.6])  # the last one makes the floor active
def test_debiased_partition(hardness, same):
    def loops(z0, z1):
        positive = reference.mean(reference.cos(x, y) / 0.5 for x, y in zip(z0, z1, strict=True))
        return reference.debiased(z0, z1, 0.5, same, hardness) + positive

    reference.check(partial(debiased_partition, temperature=0.5, same=same, hardness=hardness), loops, *draw(2, 4, 3))


def test_polarisation():
    reference.check(
        partial(polarisation, near=0.2, far=0.6), partial(reference.polarisation, near=0.2, far=0.6), draw(6, 3)
    )


def test_queue_partition():
    positive, queue = draw(4, 3, seed=1), draw(5, 3, seed=2)

    def loops(z):
        rows = zip(z, positive, strict=True)
        return reference.mean(sum((reference.cos(x, e) / 0.3).exp() for e in [t, *queue]).log() for x, t in rows)

    reference.check(lambda z: queue_partition(z, positive, queue, 0.3), loops, draw(4, 3))


def test_entry_partition():
    reference.check(entry_partition, lambda x: reference.mean(sum(a.exp() for a in row).log() for row in x), draw(3, 4))
