"""Nearest neighbours in a queue of the network's own embeddings as positives (NNCLR)."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from glf.constrain.contrast import entry_partition, log_partition
from glf.nn.memory import Queue
from glf.similarity import similarities
from glf.terms import EmbeddingTransform, Term, cross_view_pairs, mean
from glf.types import Embeddings, Scalar


def nearest_entries(z: Float[Tensor, "batch dim"], queue: Float[Tensor, "entry dim"]) -> Float[Tensor, "batch dim"]:
    """The entry of a queue with the largest cosine to each embedding, without gradient.

    >>> nearest_entries(torch.tensor([[3.0, 1.0]]), torch.eye(2)).tolist()
    [[1.0, 0.0]]
    """
    return queue[similarities(z.detach(), queue, 1.0).argmax(1)]


class NearestNeighbours(EmbeddingTransform):
    """NNCLR: adds the nearest neighbour of every view in a queue of the first view's embeddings of earlier batches."""

    formula = "nearest neighbour of z in a queue of its earlier values, without gradient"

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.memory = Queue(size)

    def forward(self, e: Embeddings) -> Embeddings:
        (queue,) = self.memory(e.z[:1].detach())
        return replace(e, neighbours=torch.stack([nearest_entries(z, queue) for z in e.z]))


class NeighbourPartition(Term):
    """NNCLR: the log-partition of a neighbour's similarities to another view's predictions of the batch.

    With ``within``, every neighbour and every prediction is compared with all others of both kinds, as lightly does.
    """

    name, role, formula = "neighbour_partition", "constrain", "log sum_k exp(cos(neighbour, p'_k) / temperature)"
    needs = frozenset({"z", "p"})

    def __init__(self, temperature: float = 0.1, within: bool = False) -> None:
        super().__init__()
        self.temperature, self.within = temperature, within

    def forward(self, e: Embeddings) -> Scalar:
        p, neighbours = e.require("p"), e.require("neighbours")
        pairs = cross_view_pairs(p, neighbours)
        if self.within:
            return mean(log_partition(torch.cat((neighbours[w], p[v])), self.temperature) for v, w in pairs)
        return mean(entry_partition(similarities(neighbours[w], p[v], self.temperature)) for v, w in pairs)
