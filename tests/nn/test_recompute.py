"""Activations that are computed again in the backward pass: the same step, with less stored for it."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from rich.console import Console
from timm.layers import DropPath
from torch import Tensor, nn

from glf.checkpoint import load_checkpoint
from glf.config.training import PretrainConfig
from glf.methods import parse
from glf.nn.backbone import Backbone
from glf.nn.network import Network
from glf.nn.norms import batch_norms, folded_in_training, frozen_batch_statistics
from glf.nn.recompute import checkpoint_activations, find_blocks
from glf.objective import Objective
from glf.rundir import Stopped
from glf.runfiles import LAST
from glf.train.run import pretrain
from glf.types import Views

SIDE = 32
MODELS = {  # with their number of blocks
    "small_resnet": 4,  # batch normalisation
    "timm:tf_efficientnet_lite0": 16,  # of blocks with stochastic depth
    "timm:test_vit": 6,  # with dropout
    "timm:test_convnext": 9,
    "timm:regnetx_002": 4,  # its stages
    "torchvision:resnet18": 8,
    "torchvision:efficientnet_b0": 16,  # with stochastic depth of its own
}


def backbone(name: str, again: bool, *, dropout: bool = True) -> Backbone:
    torch.manual_seed(0)
    made = Backbone(name, channels=3, image_size=SIDE, stem="standard").double()
    for layer in made.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)  # timm's last one of a block is zero: nothing would pass
        if isinstance(getattr(layer, "drop_path", None), nn.Identity) and dropout:
            layer.drop_path = DropPath(0.2)
        if isinstance(layer, nn.Dropout):
            layer.p = 0.2 * dropout
    if again:
        checkpoint_activations(made)
    return made.train()


class Stored(torch.autograd.graph.saved_tensors_hooks):
    """The bytes that autograd stores for a backward pass, by their place, without parameters."""

    def __init__(self, module: nn.Module) -> None:
        self.own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self.bytes: dict[int, int] = {}
        super().__init__(self._note, lambda x: x)

    def _note(self, x: Tensor) -> Tensor:
        place = x.untyped_storage().data_ptr()
        if place not in self.own:
            self.bytes[place] = x.untyped_storage().nbytes()
        return x


def stepped(module: nn.Module, forward: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Output, gradients and buffers after a step, and the state of the random numbers."""
    torch.manual_seed(1)
    stored = Stored(module)
    with stored:
        out = forward()
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    (out * weights).sum().backward()
    found = {f"gradient of {name}": p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    found |= {name: value.clone() for name, value in module.named_buffers()}
    found |= {"out": out.detach(), "random": torch.get_rng_state()}
    return found | {"stored": torch.tensor(sum(stored.bytes.values()))}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_statistics_are_those_of_stored_activations(name: str) -> None:
    x = torch.rand(6, 3, SIDE, SIDE, dtype=torch.float64)
    plain, again = (backbone(name, again) for again in (False, True))
    assert len(find_blocks(again)) == MODELS[name]
    assert plain.state_dict().keys() == again.state_dict().keys()
    expected, found = (stepped(one, lambda one=one: one(x)) for one in (plain, again))
    stored, kept = found.pop("stored"), expected.pop("stored")
    assert_same(found, expected)
    assert all(layer.num_batches_tracked == 1 for layer in batch_norms(again))
    assert any(value.abs().max() > 1e-6 for key, value in expected.items() if key.startswith("gradient"))
    assert stored < 0.7 * kept


def test_random_layers_draw_anew_at_every_step() -> None:
    """Else equal gradients would say nothing about dropout."""
    x = torch.rand(6, 3, SIDE, SIDE, dtype=torch.float64)
    one = backbone("timm:test_vit", True)
    torch.manual_seed(1)
    assert not torch.allclose(one(x), one(x))


def test_batch_statistics_in_evaluation_mode_and_folded_layers_are_left_alone() -> None:
    """The encoder of an adaptation: in evaluation mode, and folded if it has a trunk."""
    x = torch.rand(6, 3, SIDE, SIDE, dtype=torch.float64)
    plain, again = (backbone("small_resnet", again).eval() for again in (False, True))
    expected = stepped(plain, lambda: plain(x))
    assert_same(stepped(again, lambda: again(x)), expected | {"stored": stepped(again, lambda: again(x))["stored"]})
    again.zero_grad()
    folded = folded_in_training(again, x)
    assert folded is not again
    found = stepped(again, lambda: folded(x))
    assert found["stored"] < 0.7 * expected["stored"]
    for name in expected.keys() - {"stored", "random"}:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-8, atol=1e-10)


def trained(spec: str, again: bool) -> tuple[Network, Objective]:
    method = parse(spec)
    objective = method.build()
    heads = replace(method.heads, projector=(16, 8), predictor=(8,), local=(8,), prototypes=6)
    network = Network(backbone("small_resnet", again, dropout=False), heads, objective.needs).double()
    return network, objective.double()


def views(spec: str) -> Views:
    """Two views; for swav two local crops, too, which pass through the network by themselves."""
    sides = (SIDE, SIDE, 16, 16) if spec == "swav" else (SIDE, SIDE)
    draw = torch.Generator().manual_seed(5)
    x = tuple(torch.rand(8, 3, side, side, generator=draw, dtype=torch.float64) for side in sides)
    corner = torch.rand(len(x), 8, 2, generator=draw, dtype=torch.float64) / 2
    prior, clean = torch.randn(8, 5, generator=draw, dtype=torch.float64), x[0]
    return Views(x, torch.cat([corner, corner + 0.5], -1), torch.arange(8), torch.arange(8), prior, clean)


@pytest.mark.parametrize("spec", ["simclr+adc", "byol", "swav", "vicregl"])
def test_several_views_and_a_teacher(spec: str) -> None:
    results = []
    for again in (False, True):
        network, objective = trained(spec, again)

        def loss(network: Network = network, objective: Objective = objective) -> Tensor:
            total: Tensor = objective(network(views(spec))).total
            return total

        results.append(stepped(network, loss))
        if network.teacher is not None:
            network.teacher.follow(network.student, 0.5)
            with torch.no_grad():
                assert torch.isfinite(network.teacher(views(spec).x[0])).all()
    assert results[1].pop("stored") < results[0].pop("stored")
    assert_same(results[1], results[0])


def test_a_chunk_does_not_count_for_batch_statistics_when_it_is_computed_again() -> None:
    """The second pass of --accumulate, in which the statistics are frozen already, leaves everything as it was."""
    network, objective = trained("simclr", True)
    before = {name: value.clone() for name, value in network.named_buffers()}
    momenta = [layer.momentum for layer in batch_norms(network)]
    with frozen_batch_statistics(network):
        objective(network(views("simclr"))).total.backward()
    assert all(torch.equal(value, before[name]) for name, value in network.named_buffers())
    assert [layer.momentum for layer in batch_norms(network)] == momenta


def test_only_blocks_that_are_trained_are_computed_again() -> None:
    plain, one = (backbone("small_resnet", False).requires_grad_(False) for _ in range(2))
    for made in (plain, one):
        made.body.layer4.requires_grad_(True)
    checkpoint_activations(one)
    wrapped = [name for name, block in one.body.named_modules() if "forward" in vars(block)]
    assert wrapped == ["layer4.0"]
    x = torch.rand(6, 3, SIDE, SIDE, dtype=torch.float64)
    expected, found = (stepped(made, lambda made=made: made(x)) for made in (plain, one))
    assert found.pop("stored") < expected.pop("stored")
    assert_same(found, expected)


@pytest.mark.parametrize("name", ["torchvision:alexnet", "timm:vgg11"])
def test_a_model_without_blocks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} has no blocks to checkpoint .*: drop --checkpoint-activations"):
        checkpoint_activations(Backbone(name, image_size=64, stem="standard"))


def test_it_is_not_combined_with_compile() -> None:
    with pytest.raises(ValueError, match=r"--compile decides itself.*drop --checkpoint-activations"):
        PretrainConfig(compile=True, checkpoint_activations=True)


# --- runs


def settings(out: Path, **changes: Any) -> PretrainConfig:
    given: dict[str, Any] = {"method": "byol", "max_images": 128, "batch_size": 32, "epochs": 2, "val_images": 0}
    given |= {"image_size": 16, "log_every": 1, "device": "cpu", "workers": 0, "auto": False}
    return PretrainConfig(out=out, **given | changes)


class StopInTheMiddle(L.Callback):
    """Asks the run to stop in its second step, as a batch system does."""

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("accumulate", "from_the_start"), [(1, True), (2, False)])
def test_a_resumed_run_is_the_run_with_stored_activations(
    accumulate: int, from_the_start: bool, tmp_path: Path, console: Console
) -> None:
    """In float32, with batch normalisation and a teacher: bit for bit. It may begin when a run is resumed."""
    plain, stopped = tmp_path / "plain", tmp_path / "stopped"
    pretrain(settings(plain, accumulate=accumulate), console)
    begun = settings(stopped, accumulate=accumulate, checkpoint_activations=from_the_start)
    with pytest.raises(Stopped, match="after step 2"):
        pretrain(begun, console, [StopInTheMiddle()])
    result = pretrain(PretrainConfig(out=stopped, resume=True, checkpoint_activations=True), console)
    assert result["config"]["checkpoint_activations"]
    states = [load_checkpoint(run / LAST)["state_dict"] for run in (plain, stopped)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
