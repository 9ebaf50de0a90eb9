"""The one differentiable gather. No other file imports torch.distributed."""

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from glf.types import BATCH_DIM, Embeddings

_LAUNCHERS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")  # set by torchrun, Lightning, SLURM, LSF


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number among them."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def launched_rank() -> int:
    """This process's rank, before or after the process group is set up; before, from the launcher's environment."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return next((int(os.environ[name]) for name in _LAUNCHERS if name in os.environ), 0)


def is_lost_peer(error: BaseException) -> bool:
    """Whether this is what a process is told when another one of the run has ended in the middle of it."""
    backend = isinstance(error, dist.DistError) if dist.is_available() else False
    return backend or (isinstance(error, RuntimeError) and "gloo/transport" in str(error))


def disagreements(numbers: Sequence[int], device: torch.device | None = None) -> list[int]:
    """The positions of numbers that are not the same on all processes; every one of them gets the answer."""
    if world_size() == 1:
        return []
    largest = torch.tensor([*numbers, *(-number for number in numbers)], device=device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    most, least = largest.chunk(2)
    differing: list[int] = (most != -least).nonzero().flatten().tolist()
    return differing


def same_everywhere(*numbers: int, device: torch.device | None = None) -> bool:
    """Whether all processes have these numbers."""
    return not disagreements(numbers, device)


def gather(e: Embeddings) -> Embeddings:
    """The embeddings of the global batch, on every process.

    Every process then computes the same global loss L. The gather's backward sums what all processes ask of a
    shard, that is world_size times dL/dz; data-parallel training averages the parameters' gradients over
    processes, and the two factors cancel: the gradient is that of one process with the whole batch. (A plain
    all_gather with the own shard put back would give exactly half of it with two processes.)
    """
    if world_size() == 1:
        return e
    fields = {name: getattr(e, name) for name in BATCH_DIM if getattr(e, name) is not None}
    gathered: dict[str, Any] = {name: _gather(value, BATCH_DIM[name]) for name, value in fields.items()}
    return Embeddings(**gathered, full=e.full)


def _gather(value: Tensor, dim: int | None) -> Tensor:
    if dim is None:  # parameters: every process has them, and computes their whole gradient
        return value
    gathered: Tensor = _Gather.apply(value, dim)
    return gathered


class _Gather(torch.autograd.Function):
    """All shards, joined along dim. Backward: this process's shard of the sum of all processes' gradients.

    torch.distributed.nn.functional.all_gather would do, but its backward hands gloo a buffer in the gradient's own
    memory layout, which gloo silently fills in the wrong order (pytorch #192920); it is also deprecated.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int) -> Tensor:
        ctx.dim, ctx.size = dim, value.shape[dim]
        value = value.contiguous()
        shards = [torch.empty_like(value) for _ in range(world_size())]
        dist.all_gather(shards, value)
        return torch.cat(shards, dim=dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.narrow(ctx.dim, rank() * ctx.size, ctx.size), None
