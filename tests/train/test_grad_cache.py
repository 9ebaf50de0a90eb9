"""A batch in parts has the loss and the gradient of the whole batch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from glf.config.adc import AdcOptions
from glf.config.training import PretrainConfig
from glf.methods import METHODS, parse
from glf.nn.backbone import Backbone
from glf.nn.heads import Heads
from glf.nn.network import Network
from glf.nn.norms import frozen_batch_statistics
from glf.objective import Objective
from glf.train.grad_cache import concatenate, embedding_gradients, split_views
from glf.train.run import pretrain
from glf.types import Embeddings, Views

BATCH, CLASSES, SIDE = 12, 3, 32
CASES = [f"{method}+adc" for method in METHODS]
TARGETS = {"clean": AdcOptions(target="clean", perplexity=3.0), "memory": AdcOptions(target="memory", memory_size=9)}
CASES += [f"{method}+adc {target}" for method in ("simclr", "byol") for target in TARGETS]


def build(case: str, norm: bool = False) -> tuple[Network, Objective]:
    """A network in float64 whose layers know nothing of the batch, unless ``norm``."""
    name, _, target = case.partition(" ")
    method = parse(name, TARGETS.get(target, AdcOptions()))
    objective = method.build()
    heads: Heads = replace(method.heads, projector=(16, 8), predictor=(8,), local=(8,), prototypes=6, norm=norm)
    torch.manual_seed(3)
    backbone = Backbone("timm:test_resnet" if norm else "timm:test_convnext", channels=1, image_size=SIDE)
    rows = torch.arange(BATCH + 2)
    network = Network(backbone, replace(heads, last_norm=False), objective.needs, classes=CLASSES, prior=5, rows=rows)
    if not norm:
        for module in list(network.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                    setattr(module, name, nn.Identity())
    return network.double(), objective.double()


def draw_views() -> Views:
    generator = torch.Generator().manual_seed(5)
    x = tuple(torch.rand(BATCH, 1, SIDE, SIDE, generator=generator, dtype=torch.float64) for _ in range(2))
    corner = torch.rand(2, BATCH, 2, generator=generator, dtype=torch.float64) / 2
    boxes = torch.cat([corner, corner + 0.5], -1)
    prior = torch.randn(BATCH, 5, generator=generator, dtype=torch.float64)
    clean = torch.rand(BATCH, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return Views(x, boxes, torch.arange(BATCH) % CLASSES, torch.arange(BATCH), prior, clean)


def gradients(*modules: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for module in modules for p in module.parameters() if p.grad is not None]


def whole(case: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    network, objective = build(case)
    loss = objective(network(draw_views())).total
    loss.backward()
    return loss.detach(), gradients(network, objective)


def in_parts(case: str, count: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    network, objective = build(case)
    parts = split_views(draw_views(), count)
    with torch.no_grad():
        e = concatenate([network(part) for part in parts])
    loss = objective(e).total
    cached = embedding_gradients(loss, e, objective)
    for number, part in enumerate(parts):
        cached.surrogate_loss(network(part, with_teacher=False), number, count).backward()
    return loss.detach(), gradients(network, objective)


@pytest.mark.parametrize("case", CASES)
def test_parts_have_the_gradient_of_the_whole(case: str) -> None:
    loss, expected = whole(case)
    assert any(g.abs().max() > 1e-8 for g in expected)
    other, found = in_parts(case, 3)
    torch.testing.assert_close(other, loss, rtol=1e-8, atol=1e-10)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_plain_accumulation_is_something_else() -> None:
    """What other libraries call accumulation: the mean over parts of losses that know only their part."""
    _, expected = whole("simclr+none")
    network, objective = build("simclr+none")
    for part in split_views(draw_views(), 2):
        (objective(network(part)).total / 2).backward()
    assert any((a - b).norm() > 0.05 * b.norm() for a, b in zip(gradients(network), expected, strict=True))


def test_half_precision_reaches_the_objective_in_full() -> None:
    e = concatenate([Embeddings(z=torch.ones(2, 4, 3, dtype=torch.bfloat16)) for _ in range(2)])
    assert (e.z.dtype, e.z.shape, e.z.is_leaf, e.z.requires_grad) == (torch.float32, (2, 8, 3), True, True)


def test_running_statistics_count_a_part_once() -> None:
    network, _ = build("simclr+none", norm=True)
    parts = split_views(draw_views(), 2)
    with torch.no_grad():
        for part in parts:
            network(part)
    before = {name: value.clone() for name, value in network.named_buffers()}
    assert any(name.endswith("num_batches_tracked") for name in before)
    with frozen_batch_statistics(network):
        network(parts[0])
    assert all(torch.equal(value, before[name]) for name, value in network.named_buffers())
    with torch.no_grad():
        network(parts[0])
    assert not all(torch.equal(value, before[name]) for name, value in network.named_buffers())


@pytest.mark.parametrize("method", ["simclr+adc", "moco"])
def test_a_run_in_parts_is_the_run(method: str, tmp_path: Path) -> None:
    """A backbone without batch statistics, in float64: the same weights after four steps, and after a resume."""
    config = PretrainConfig(
        method=method,
        backbone="timm:test_vit",
        image_size=32,
        stem="standard",
        max_images=64,
        batch_size=32,
        epochs=2,
        val_images=0,
        log_every=1,
        precision="64-true",
        device="cpu",
        workers=0,
        projector=(32, 16),
        predictor=(16,),
        projector_norm=False,
    )
    runs = {count: tmp_path / str(count) for count in (1, 4)}
    for count, out in runs.items():
        pretrain(replace(config, accumulate=count, out=out))
    one, four = (load_file(out / "backbone.safetensors") for out in runs.values())
    for name, value in one.items():
        torch.testing.assert_close(four[name], value, rtol=1e-6, atol=1e-8)


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch of 64 cannot be split among 2 devices in 3 chunks.*multiple of 6"):
        pretrain(PretrainConfig(batch_size=64, devices=2, accumulate=3, out=tmp_path / "run"))
    with pytest.raises(ValueError, match="accumulate must be at least 1, got 0"):
        pretrain(PretrainConfig(accumulate=0, out=tmp_path / "run"))
