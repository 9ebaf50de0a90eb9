"""Optimizers and the learning-rate schedule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from glf.config.training import ResolvedPretrainConfig
from glf.nn.schedule import warmup_cosine


def scaled_lr(config: ResolvedPretrainConfig) -> float:
    """Learning rate for this global batch: lr is stated for 256 images and scales linearly."""
    return config.lr * config.batch_size / 256


def build(
    network: nn.Module, config: ResolvedPretrainConfig, *, steps_per_epoch: int, constant: nn.Module | None = None
) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return the optimizer of the network and its schedule; the learning rate of ``constant`` does not decay."""
    fixed = {id(p) for p in constant.parameters()} if constant is not None else set()
    trained = [p for p in network.parameters() if p.requires_grad]
    schedule = warmup_cosine(round(config.warmup_epochs * steps_per_epoch), config.epochs * steps_per_epoch)
    groups: list[dict[str, Any]] = []
    factors: list[Callable[[int], float]] = []
    for is_fixed in (False, True):
        for decayed in (True, False):  # vectors are biases and normalisation weights: no decay
            chosen = [p for p in trained if (id(p) in fixed) == is_fixed and (p.ndim > 1) == decayed]
            if chosen:
                own = (config.weight_decay, 1.0) if decayed else (0.0, config.bias_lr)
                groups.append({"params": chosen, "weight_decay": own[0], "lr": scaled_lr(config) * own[1]})
                factors.append((lambda step: 1.0) if is_fixed else schedule)
    optimizer = _optimizer(config, groups)
    return optimizer, LambdaLR(optimizer, factors)


def _optimizer(config: ResolvedPretrainConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    lr = scaled_lr(config)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr, fused=True)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=0.9, fused=True)
    from timm.optim import Lars

    # timm's LARS does not adapt groups without weight decay.
    trust = {"trust_coeff": config.lars_eta, "trust_clip": config.lars_clip}
    lars: torch.optim.Optimizer = Lars(groups, lr=lr, momentum=0.9, **trust)
    return lars
