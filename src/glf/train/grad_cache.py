"""GradCache: the loss and gradient of a whole batch, with the activations of one chunk in memory at a time.

Each chunk is encoded once without saving activations. The objective is computed on the embeddings of the whole batch,
and its gradient at the embeddings is cached. Then each chunk is encoded again and back-propagates its part of that
gradient. The cost is a second forward pass. Batch normalisation in the network still sees one chunk at a time.

Reference: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glf.types import BATCH_DIM, LEARNT, Embeddings, Views


def split_views(views: Views, chunks: int) -> list[Views]:
    """Split the views of a batch into chunks of consecutive images."""
    size = len(views.indices) // chunks
    slices = [slice(start, start + size) for start in range(0, len(views.indices), size)]
    return [
        Views(
            x=tuple(x[chunk] for x in views.x),
            boxes=views.boxes[:, chunk],
            target=views.target[chunk],
            indices=views.indices[chunk],
            prior=None if views.prior is None else views.prior[chunk],
            clean=None if views.clean is None else views.clean[chunk],
        )
        for chunk in slices
    ]


def concatenate(chunks: Sequence[Embeddings]) -> Embeddings:
    """Return the embeddings of the whole batch as leaves, at which the gradient stops."""
    fields: dict[str, Tensor] = {}
    for name, dim in BATCH_DIM.items():
        values = [getattr(chunk, name) for chunk in chunks if getattr(chunk, name) is not None]
        if values:
            fields[name] = values[0] if dim is None else torch.cat(values, dim)
    given: dict[str, Any] = fields
    batch = Embeddings(**given, full=chunks[0].full).in_full_precision()
    present = {name: getattr(batch, name).detach() for name in fields}
    leaves: dict[str, Any] = {name: value.requires_grad_(name in LEARNT) for name, value in present.items()}
    return Embeddings(**leaves, full=batch.full)


class EmbeddingGradients(NamedTuple):
    """The gradient of a loss at the embeddings, and at the objective's own parameters."""

    at: dict[str, Tensor]
    own: list[tuple[Tensor, Tensor]]  # parameters with their gradients

    def surrogate_loss(self, e: Embeddings, number: int, chunks: int) -> Tensor:
        """Return a loss whose gradient equals this chunk's part of the full-batch gradient.

        The last chunk also carries the gradients of unbatched parameters.
        """
        products = []
        for name, gradient in self.at.items():
            dim = BATCH_DIM[name]
            value = getattr(e, name)
            if dim is not None:
                products.append((value.to(gradient.dtype) * gradient.chunk(chunks, dim)[number]).sum())
            elif number == chunks - 1:
                products.append((value * gradient).sum())
        if number == chunks - 1:
            products += [(parameter * gradient).sum() for parameter, gradient in self.own]
        return torch.stack(products).sum()


def embedding_gradients(loss: Tensor, batch: Embeddings, objective: nn.Module) -> EmbeddingGradients:
    """Differentiate the loss at the embeddings, without entering the network."""
    leaves = {name: getattr(batch, name) for name in LEARNT if getattr(batch, name) is not None}
    own = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, [*leaves.values(), *own], allow_unused=True)
    at = {name: g for name, g in zip(leaves, gradients, strict=False) if g is not None}
    return EmbeddingGradients(at, [(p, g) for p, g in zip(own, gradients[len(leaves) :], strict=True) if g is not None])
