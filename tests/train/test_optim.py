"""Learning rates, their course, and who takes weight decay."""

import pytest
import torch
from torch import nn

from glf.config.training import ResolvedPretrainConfig
from glf.train import optim


def network() -> nn.ModuleDict:
    return nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "predictor": nn.Linear(4, 4)})


def test_the_rate_scales_with_the_global_batch() -> None:
    assert optim.scaled_lr(ResolvedPretrainConfig(lr=0.1, batch_size=1024)) == pytest.approx(0.4)


@pytest.mark.parametrize("name", ["adamw", "sgd", "lars"])
def test_vectors_take_no_decay_and_a_fixed_part_keeps_its_rate(name: str) -> None:
    net = network()
    config = ResolvedPretrainConfig(optimizer=name, lr=0.1, weight_decay=0.5, epochs=2, warmup_epochs=0)  # type: ignore[arg-type]
    optimizer, scheduler = optim.build(net, config, steps_per_epoch=5, special=[optim.constant(net["predictor"])])
    for group in optimizer.param_groups:
        assert all((p.ndim > 1) == (group["weight_decay"] == 0.5) for p in group["params"])
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(net.parameters()))
    for _ in range(10):
        optimizer.zero_grad()
        net["predictor"](net["body"](torch.randn(8, 4))).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
    ends = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert ends[id(net["predictor"].weight)] == pytest.approx(0.1)
    assert ends[id(net["body"][0].weight)] == pytest.approx(0.0, abs=1e-9)
    assert all(p.isfinite().all() for p in net.parameters())


def test_frozen_parameters_are_left_out() -> None:
    net = network()
    net["body"].requires_grad_(False)
    optimizer, _ = optim.build(net, ResolvedPretrainConfig(), steps_per_epoch=5)
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 2


def test_vectors_may_have_a_rate_of_their_own() -> None:
    config = ResolvedPretrainConfig(lr=0.1, bias_lr=0.25, epochs=2, warmup_epochs=0)
    optimizer, _ = optim.build(network(), config, steps_per_epoch=5)
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(0.025 if group["params"][0].ndim == 1 else 0.1)


@pytest.mark.parametrize("decay", [0.0, 1e-9])
@pytest.mark.parametrize(
    ("eta", "clip", "relative"), [(0.02, True, 0.02), (0.001, False, 0.0004), (0.001, True, 0.001)]
)
def test_lars_goes_as_far_as_it_is_told(eta: float, clip: bool, relative: float, decay: float) -> None:
    """Clipped, a step is the smaller of eta |w| / |g| and the rate, whatever the schedule; else it is their product."""
    weight = torch.nn.Linear(3, 3, bias=False)
    before = weight.weight.detach().clone()
    config = ResolvedPretrainConfig(
        optimizer="lars", lr=0.4, weight_decay=decay, lars_eta=eta, lars_clip=clip, warmup_epochs=0
    )
    optimizer, _ = optim.build(weight, config, steps_per_epoch=5)
    weight.weight.grad = 100 * torch.ones(3, 3)
    optimizer.step()
    moved = (weight.weight.detach() - before).norm() / before.norm()
    assert float(moved) == pytest.approx(relative, rel=1e-3)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lars_takes_plain_steps_of_vectors(decay: float) -> None:
    """Biases and normalisation layers are not adapted, whatever the weight decay of the others."""
    net = nn.BatchNorm1d(3)
    config = ResolvedPretrainConfig(optimizer="lars", lr=0.4, weight_decay=decay, batch_size=256, warmup_epochs=0)
    optimizer, _ = optim.build(net, config, steps_per_epoch=5)
    for p in net.parameters():
        p.grad = 100 * torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(net.weight.detach(), torch.full((3,), 1 - 40.0))
    torch.testing.assert_close(net.bias.detach(), torch.full((3,), -40.0))
