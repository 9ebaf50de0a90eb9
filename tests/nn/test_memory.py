import pytest
import torch

import reference
from glf.nn.memory import RunningCovariance, covariance_of
from reference import draw


@pytest.mark.parametrize("shape", [(2, 1), (3, 4), (8, 3)], ids=str)
def test_covariance(shape):
    reference.check(covariance_of, reference.covariance_matrix, draw(*shape) + 3)


def test_the_running_covariance_is_an_exponential_average():
    running, expected = RunningCovariance(momentum=0.9), None
    for seed in range(4):
        batch = (draw(6, 3, seed=seed) + seed).requires_grad_()
        now = reference.covariance_matrix(batch.detach())
        expected = now if expected is None else 0.9 * expected + 0.1 * now
        average = running(batch)
        assert not average.requires_grad
        torch.testing.assert_close(average, expected, rtol=1e-10, atol=1e-12)


def test_it_does_not_move_in_evaluation():
    running = RunningCovariance()
    first = running(draw(6, 3)).clone()
    assert torch.equal(running.eval()(draw(6, 3, seed=1)), first)


def test_it_follows_the_dtype_of_the_batch():
    running = RunningCovariance()
    running(draw(6, 3).float())
    assert running(draw(6, 3, seed=1)).dtype == torch.float64


@pytest.mark.parametrize("batches", [0, 2])
def test_a_checkpoint_holds_it(batches):
    running, fresh = RunningCovariance(), RunningCovariance()
    for seed in range(batches):
        running(draw(6, 3, seed=seed))
    fresh.load_state_dict({name: value.clone() for name, value in running.double().state_dict().items()})
    batch = draw(6, 3, seed=9)
    torch.testing.assert_close(fresh(batch), running(batch), rtol=1e-6, atol=0)
