import math

import pytest
import torch

import reference
from glf.relations import DIVERGENCES, Relate, Uniform
from reference import draw

LOG_P = draw(4, 5).log_softmax(-1)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_equals_its_loops(name):
    def ours(logits):
        return DIVERGENCES[name](LOG_P, logits.log_softmax(-1))

    def loops(logits):
        rows = [reference.softmax(row) for row in logits]
        return torch.stack(
            [reference.DIVERGENCES_OF[name](p, q) for p, q in zip(LOG_P.exp(), rows, strict=True)],
        )

    reference.check(ours, loops, draw(4, 5, seed=1))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_is_zero_for_equals_and_positive_otherwise(name):
    same, other = DIVERGENCES[name](LOG_P, LOG_P), DIVERGENCES[name](LOG_P, draw(4, 5, seed=1).log_softmax(-1))
    torch.testing.assert_close(same, torch.zeros_like(same), rtol=0, atol=1e-12)
    assert (other > 1e-3).all()


@pytest.mark.parametrize(("name", "bound"), [("js", math.log(2)), ("tv", 1.0), ("reverse", -math.log(1e-8))])
def test_of_distributions_without_common_entries_it_is_its_bound(name, bound):
    p, q = (torch.tensor(row, dtype=torch.float64) for row in ([[1.0, 0.0]], [[0.0, 1.0]]))
    found = DIVERGENCES[name](p.clamp_min(1e-300).log(), q.clamp_min(1e-300).log())
    torch.testing.assert_close(float(found), bound)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown divergence 'jss' - did you mean 'js'"):
        Relate(Uniform(), Uniform(), "jss")
    with pytest.raises(ValueError, match="unknown entries 'queues' - did you mean 'queue'"):
        Relate(Uniform(), Uniform(), among="queues")
