"""Activation checkpointing: the activations inside a block are computed again in the backward pass, not stored.

The blocks are those of the model's stages (``find_stages``): residual blocks, or the layers of a transformer. Only the
input of a block is stored. The second forward pass has the random numbers of the first one, and does not count for the
running statistics of batch normalisation; timm's ``set_grad_checkpointing`` would count every batch twice.

Reference: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from glf.nn.backbone import Backbone
from glf.nn.cut import find_stages
from glf.nn.norms import frozen_batch_statistics


def find_blocks(backbone: Backbone) -> list[nn.Module]:
    """The blocks of a model in the order in which they run; ValueError if it has none."""
    try:
        stages = [backbone.body.get_submodule(name) for name in find_stages(backbone.body)]
    except ValueError as error:
        raise _no_blocks(backbone, str(error)) from error
    blocks = [block for stage in stages for block in _inside(stage)]
    if not any(map(_has_layers, blocks)):
        raise _no_blocks(backbone, "its stages are single layers")
    return blocks


def checkpoint_activations(backbone: Backbone) -> None:
    """Make all blocks with trained parameters compute their activations again in the backward pass."""
    for block in find_blocks(backbone):
        if any(p.requires_grad for p in block.parameters()):
            block.forward = partial(_checkpointed, block.forward)


def _inside(stage: nn.Module) -> list[nn.Module]:
    """The blocks of a stage, or the stage itself if it is one."""
    inner: nn.Module = getattr(stage, "blocks", stage)  # timm's name for them
    if type(inner) not in (nn.Sequential, nn.ModuleList):
        return [stage]
    return [block for block in inner.children() if _has_layers(block)] or [stage]


def _has_layers(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _checkpointed(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Call the ``forward`` of a block; a teacher's copy of it, without gradients, stores nothing anyway."""
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    block: nn.Module = forward.__self__  # type: ignore[attr-defined]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), frozen_batch_statistics(block)

    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)


def _no_blocks(backbone: Backbone, why: str) -> ValueError:
    return ValueError(f"{backbone.name} has no blocks to checkpoint ({why}): drop --checkpoint-activations")
