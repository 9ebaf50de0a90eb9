"""Optimizers and the learning-rate schedule."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from glf.config.training import AdaptConfig, ResolvedPretrainConfig
from glf.nn.schedule import warmup_cosine


def scaled_lr(config: ResolvedPretrainConfig) -> float:
    """Learning rate for this global batch: lr is stated for 256 images and scales linearly, except in an adaptation."""
    return config.lr if isinstance(config, AdaptConfig) else config.lr * config.batch_size / 256


class Part(NamedTuple):
    """Parameters with a learning rate of their own."""

    parameters: Sequence[nn.Parameter]
    factor: float  # of the learning rate
    schedule: Callable[[int], float]


def constant(module: nn.Module) -> Part:
    """The parameters of a module, whose learning rate does not decay."""
    return Part(list(module.parameters()), 1.0, lambda step: 1.0)


def build(
    network: nn.Module,
    config: ResolvedPretrainConfig,
    *,
    steps_per_epoch: int,
    special: Sequence[Part] = (),
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return the optimizer of the network and its schedule; all parameters but those of ``special`` share one."""
    own = {id(p) for part in special for p in part.parameters}
    rest = [p for p in network.parameters() if id(p) not in own]
    schedule = warmup_cosine(round(config.warmup_epochs * steps_per_epoch), config.epochs * steps_per_epoch)
    groups: list[dict[str, Any]] = []
    factors: list[Callable[[int], float]] = []
    for part in (Part(rest, 1.0, schedule), *special):
        for decayed in (True, False):  # vectors are biases and normalisation weights: no decay
            chosen = [p for p in part.parameters if p.requires_grad and (p.ndim > 1) == decayed]
            if chosen:
                decay, factor = (config.weight_decay, 1.0) if decayed else (0.0, config.bias_lr)
                groups.append({"params": chosen, "weight_decay": decay, "lr": scaled_lr(config) * factor * part.factor})
                factors.append(part.schedule)
    optimizer = _optimizer(config, groups)
    return optimizer, LambdaLR(optimizer, factors)


def _optimizer(config: ResolvedPretrainConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    lr = scaled_lr(config)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr, fused=True)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=0.9, fused=True)
    from timm.optim import Lars

    trust = {"trust_coeff": config.lars_eta, "trust_clip": config.lars_clip}
    # By itself timm adapts groups with weight decay only: weights would take plain SGD steps if the decay is 0.
    adapted = [{**group, "always_adapt": group["params"][0].ndim > 1} for group in groups]
    lars: torch.optim.Optimizer = Lars(adapted, lr=lr, momentum=0.9, **trust)
    return lars
