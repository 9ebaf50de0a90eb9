"""A batch in parts: the loss and the gradient of the whole, in the memory of one part.

Every part is encoded once without keeping anything for a backward; the objective judges the embeddings of all together
and says which gradient it wants at each; then every part is encoded again, and carries its own back to the weights. The
price is a second forward. Only batch normalisation in the network can tell: it sees a part at a time.

Reference: Gao et al. 2021, Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from glf.types import BATCH_DIM, LEARNT, Embeddings, Views


def split_views(views: Views, parts: int) -> list[Views]:
    """The views of so many parts of the batch, in its order."""
    size = len(views.indices) // parts
    slices = [slice(start, start + size) for start in range(0, len(views.indices), size)]
    return [
        Views(
            x=tuple(x[rows] for x in views.x),
            boxes=views.boxes[:, rows],
            target=views.target[rows],
            indices=views.indices[rows],
            prior=None if views.prior is None else views.prior[rows],
        )
        for rows in slices
    ]


def concatenate(parts: Sequence[Embeddings]) -> Embeddings:
    """The embeddings of the whole batch, as leaves: gradients are asked for here and go no further."""
    fields: dict[str, Tensor] = {}
    for name, dim in BATCH_DIM.items():
        values = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        if values:
            fields[name] = values[0] if dim is None else torch.cat(values, dim)
    whole = Embeddings(**fields).in_full_precision()
    present = {name: getattr(whole, name).detach() for name in fields}
    return Embeddings(**{name: value.requires_grad_(name in LEARNT) for name, value in present.items()})


class EmbeddingGradients(NamedTuple):
    """The gradient of a loss at the embeddings, and at what the objective itself learns."""

    at: dict[str, Tensor]
    own: list[tuple[Tensor, Tensor]]  # parameters, and the gradient of each

    def carried_by(self, e: Embeddings, number: int, parts: int) -> Tensor:
        """What to differentiate so that a part's weights get their share; the last also brings what has no parts."""
        products = []
        for name, gradient in self.at.items():
            dim = BATCH_DIM[name]
            value = getattr(e, name)
            if dim is not None:
                products.append((value.to(gradient.dtype) * gradient.chunk(parts, dim)[number]).sum())
            elif number == parts - 1:
                products.append((value * gradient).sum())
        if number == parts - 1:
            products += [(parameter * gradient).sum() for parameter, gradient in self.own]
        return torch.stack(products).sum()


def embedding_gradients(loss: Tensor, whole: Embeddings, objective: nn.Module) -> EmbeddingGradients:
    """Which gradient the loss wants, without going into the network."""
    leaves = {name: getattr(whole, name) for name in LEARNT if getattr(whole, name) is not None}
    own = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss, [*leaves.values(), *own], allow_unused=True)
    at = {name: g for name, g in zip(leaves, found, strict=False) if g is not None}
    return EmbeddingGradients(at, [(p, g) for p, g in zip(own, found[len(leaves) :], strict=True) if g is not None])


@contextmanager
def frozen_batch_statistics(network: nn.Module) -> Iterator[None]:
    """Running statistics stay as they are: a part that is seen twice counts once."""
    layers = [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]
    before = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
        layer.num_batches_tracked = None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone()
    try:
        yield
    finally:
        for layer, (momentum, tracked) in zip(layers, before, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, tracked
