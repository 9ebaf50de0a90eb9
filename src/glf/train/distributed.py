"""The one differentiable gather. No other file imports torch.distributed."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from glf.types import Embeddings

# The batch is the second dimension of every field but the prior, which the views share.
_BATCH_DIM = {"z": 1, "h": 1, "p": 1, "teacher": 1, "prior": 0}


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number among them."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def gather(e: Embeddings) -> Embeddings:
    """The embeddings of the global batch, on every process.

    Every process then computes the same global loss L. The gather's backward sums what all processes ask of a
    shard, that is world_size times dL/dz; data-parallel training averages the parameters' gradients over
    processes, and the two factors cancel: the gradient is that of one process with the whole batch. (A plain
    all_gather with the own shard put back would give exactly half of it with two processes.)
    """
    if world_size() == 1:
        return e
    fields = {name: getattr(e, name) for name in _BATCH_DIM if getattr(e, name) is not None}
    return Embeddings(**{name: _gather(value, _BATCH_DIM[name]) for name, value in fields.items()})


def _gather(value: Tensor, dim: int) -> Tensor:
    if not value.requires_grad:
        return torch.cat(_gather_constant(value), dim=dim)
    shards = all_gather(value.contiguous())  # type: ignore[no-untyped-call]
    return torch.cat(list(shards), dim=dim)


def _gather_constant(value: Tensor) -> list[Tensor]:
    shards = [torch.empty_like(value) for _ in range(world_size())]
    dist.all_gather(shards, value.contiguous())
    return shards
