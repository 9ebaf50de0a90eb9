"""Whether a training step fits into the memory, estimated before it: the system kills a process that takes too much."""

import copy

import torch

from glf.config.training import ResolvedPretrainConfig
from glf.device import accelerator, memory
from glf.nn.backbone import Backbone


def check_step(backbone: Backbone, image_size: int, config: ResolvedPretrainConfig) -> None:
    """Refuse a batch for which the backbone alone would keep more than the memory between forward and backward pass."""
    images = max(1, config.batch_size // (config.devices * config.nodes * config.accumulate))
    per_image = kept_bytes(backbone, image_size) // (1 if config.precision.startswith("32") else 2)
    needed, there = 2 * images * per_image, memory(accelerator(config.device))
    if needed > there:
        raise ValueError(
            f"a step on {images:,} images of {image_size:,} px needs at least {needed / 1e9:,.0f} GB, and this machine"
            f" has {there / 1e9:,.0f}: a smaller --image-size, --batch-size or --backbone, or more --accumulate"
        )


def kept_bytes(backbone: Backbone, image_size: int) -> int:
    """Bytes per image that the forward pass keeps for the backward pass. Nothing is computed: tensors are empty.

    0 if the backbone cannot be traced so.
    """
    plan = copy.deepcopy(backbone).to("meta").train()
    weights = {value.untyped_storage()._cdata for value in plan.parameters()}
    kept: dict[int, int] = {}  # bytes by storage: layers share tensors

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage, shape = value.untyped_storage(), value.shape
        attention = len(shape) == 3 and shape[1] == shape[2]  # a matrix that the kernels of real devices do not keep
        kept[storage._cdata] = 0 if attention else storage.nbytes()
        return value

    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            _out = plan(torch.empty(2, plan.channels, image_size, image_size, device="meta"))  # holds what is kept
    except (RuntimeError, NotImplementedError):
        return 0
    return sum(size for storage, size in kept.items() if storage not in weights) // 2
