"""Memories of losses: updates, evaluation, checkpoints."""

import math
from collections.abc import Iterator

import pytest
import torch

import reference
from glf.nn.memory import (
    Clusters,
    Draws,
    Queue,
    RunningCentre,
    RunningCovariance,
    RunningMoments,
    RunningSecondMoments,
    concentration,
    covariance_of,
)
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


def test_the_running_covariance_is_constant_in_evaluation():
    running = RunningCovariance()
    first = running(draw(6, 3)).clone()
    assert torch.equal(running.eval()(draw(6, 3, seed=1)), first)


def test_the_running_covariance_has_the_dtype_of_the_batch():
    running = RunningCovariance()
    running(draw(6, 3).float())
    assert running(draw(6, 3, seed=1)).dtype == torch.float64


@pytest.mark.parametrize("batches", [0, 2])
def test_a_checkpoint_contains_the_running_covariance(batches):
    running, fresh = RunningCovariance(), RunningCovariance()
    for seed in range(batches):
        running(draw(6, 3, seed=seed))
    fresh.load_state_dict({name: value.clone() for name, value in running.double().state_dict().items()})
    batch = draw(6, 3, seed=9)
    torch.testing.assert_close(fresh(batch), running(batch), rtol=1e-6, atol=0)


def test_a_queue_holds_the_newest_keys_first():
    queue, keys = Queue(5), [draw(2, 3, 4, seed=seed) for seed in range(3)]
    start = queue(keys[0])
    torch.testing.assert_close(start.norm(dim=2), torch.ones(2, 5, dtype=start.dtype))
    second, third = queue(keys[1]), queue(keys[2])
    unit = [torch.nn.functional.normalize(k, dim=2) for k in keys]
    torch.testing.assert_close(second, torch.cat((unit[0], start[:, :2]), 1))
    torch.testing.assert_close(third, torch.cat((unit[1], unit[0][:, :2]), 1))
    assert torch.equal(Queue(5)(keys[0]), start)  # the same in every process


@pytest.mark.parametrize("how", ["evaluation", "no gradients"])
def test_evaluation_leaves_memories_unchanged(how):
    new = (Queue(4), RunningMoments(0.5), RunningCentre(), RunningSecondMoments())
    memories = [(memory, draw(2, 3, 4)) for memory in new]
    for memory, batch in memories:
        memory(batch)
        before = {name: value.clone() for name, value in memory.state_dict().items()}
        if how == "evaluation":
            memory.eval()(batch + 1)
        else:
            with torch.no_grad():
                memory(batch + 1)
        assert all(torch.equal(before[name], value) for name, value in memory.state_dict().items())


def test_running_moments_average_and_differentiate_the_current_batch():
    memory = RunningMoments(old=0.25)
    mean, covariance = torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    for seed in range(3):
        z = draw(1, 6, 3, seed=seed).requires_grad_()
        mean = 0.25 * mean + 0.75 * z[0].mean(0)
        centred = z[0] - mean
        covariance = 0.25 * covariance + 0.75 * centred.T @ centred / 6
        ours = memory(z)
        torch.testing.assert_close(ours[0], covariance, rtol=1e-12, atol=1e-14)
        a, b = (torch.autograd.grad(x.sum(), z, retain_graph=True)[0] for x in (ours, covariance))
        torch.testing.assert_close(a, b)
        mean, covariance = mean.detach(), covariance.detach()


@pytest.mark.parametrize("memory", [lambda: Queue(4), lambda: RunningMoments(0.5), RunningCentre, RunningSecondMoments])
def test_a_checkpoint_contains_every_memory(memory):
    one, fresh = memory(), memory()
    for seed in range(2):
        one(draw(2, 3, 4, seed=seed))
    fresh.load_state_dict(one.state_dict())
    torch.testing.assert_close(fresh(draw(2, 3, 4)), one(draw(2, 3, 4)), rtol=0, atol=0)


def test_draws_depend_on_the_number_of_draws():
    draws, other = Draws(), Draws()
    first, second = (torch.rand(3, generator=draws.generator()) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(torch.rand(3, generator=other.generator()), first)
    other.load_state_dict(draws.state_dict())
    assert torch.equal(torch.rand(3, generator=other.generator()), torch.rand(3, generator=draws.generator()))


def test_clusters_and_their_concentration():
    centres = torch.eye(3).repeat_interleave(20, 0)
    z = centres + 0.05 * draw(60, 3).float()
    memory = Clusters((3, 5), temperature=0.2, warmup_epochs=0)
    assert not memory.ready
    memory.refresh(z, torch.arange(60) + 10, total=80, epoch=0)
    assert memory.ready
    own = memory.assigned[0, 10:70].view(3, 20)
    assert (own == own[:, :1]).all()
    assert len(own[:, 0].unique()) == 3
    assert memory.assigned[:, :10].eq(-1).all()
    torch.testing.assert_close(memory.centres.norm(dim=1), torch.ones(8))
    for part in memory.concentration.split((3, 5)):
        torch.testing.assert_close(part.mean(), torch.tensor(0.2))
    fresh = Clusters((3, 5), temperature=0.2, warmup_epochs=0)
    fresh.load_state_dict(memory.state_dict())
    assert torch.equal(fresh.assigned, memory.assigned)
    assert fresh.assigned.dtype == torch.long
    with pytest.raises(ValueError, match="60 images are too few for 64 clusters"):
        Clusters((64,), 0.2, 0).refresh(z, torch.arange(60), 60, 0)


def test_concentration():
    z, label = draw(12, 2).float(), torch.tensor([0] * 7 + [1] * 4 + [2])
    centre = torch.stack([z[label == c].mean(0) for c in range(3)])
    phi = [
        float((z[label == c] - centre[c]).norm(dim=1).mean()) / math.log(int((label == c).sum()) + 10) for c in (0, 1)
    ]
    phi = torch.tensor([*phi, max(phi)])  # a cluster of one image gets the largest
    phi = phi.clamp(phi.quantile(0.1), phi.quantile(0.9))
    torch.testing.assert_close(concentration(z, label, centre, 0.3), 0.3 * phi / phi.mean())


def test_evaluating_a_loss_stores_no_covariance():
    running = RunningCovariance()
    batch = draw(6, 3)
    with torch.no_grad():
        torch.testing.assert_close(running(batch), covariance_of(batch))
    running.eval()(batch)
    assert running.covariance.numel() == 0


@pytest.fixture
def double_by_default() -> Iterator[None]:
    """As during the forward pass with --precision 64-true."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("new", "shape"),
    [
        (lambda: RunningCovariance(0.9), (6, 3)),
        (lambda: RunningMoments(0.5), (2, 3, 4)),
        (lambda: Queue(4), (2, 3, 4)),
        (RunningCentre, (2, 3, 4)),
        (RunningSecondMoments, (2, 3, 4)),
    ],
    ids=["covariance", "moments", "queue", "centre", "second moments"],
)
def test_memories_have_the_dtype_of_the_batch_whatever_the_default(new, shape, dtype):
    memory, fresh = new(), new()
    for seed in range(2):
        assert memory(draw(*shape, seed=seed).to(dtype)).dtype == dtype
    state = memory.state_dict()
    assert {value.dtype for value in state.values()} == {dtype}
    fresh.load_state_dict(state)
    batch = draw(*shape, seed=9).to(dtype)
    torch.testing.assert_close(fresh(batch), memory(batch), rtol=0, atol=0)
    assert {value.dtype for value in fresh.state_dict().values()} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_first_queue_does_not_depend_on_the_default_dtype(dtype, request):
    batch = draw(2, 3, 4).to(dtype)
    expected = Queue(4)(batch)
    request.getfixturevalue("double_by_default")
    assert torch.equal(Queue(4)(batch), expected)


@pytest.mark.usefixtures("double_by_default")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_clusters_have_their_precision_whatever_the_default(dtype):
    z = (torch.eye(3).repeat_interleave(20, 0) + 0.05 * draw(60, 3)).to(dtype)
    memory = Clusters((3, 5), temperature=0.2, warmup_epochs=0)
    memory.refresh(z, torch.arange(60), total=60, epoch=0)
    assert memory.centres.dtype == memory.concentration.dtype == torch.float32
    assert memory.assigned.dtype == torch.long
    fresh = Clusters((3, 5), temperature=0.2, warmup_epochs=0)
    fresh.load_state_dict(memory.state_dict())
    assert all(torch.equal(value, memory.state_dict()[name]) for name, value in fresh.state_dict().items())
    assert [value.dtype for value in fresh.buffers()] == [value.dtype for value in memory.buffers()]


@pytest.mark.usefixtures("double_by_default")
def test_draws_under_another_default_dtype():
    draws, other = Draws(), Draws()
    draws.generator()
    other.load_state_dict(draws.state_dict())
    assert other.count == 1
