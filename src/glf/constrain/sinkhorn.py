"""Sinkhorn codes: soft assignments to prototypes with equal mass for each prototype (SwAV)."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from glf.nn.memory import Queue
from glf.similarity import similarities
from glf.terms import EmbeddingTransform
from glf.types import Embeddings


def sinkhorn(
    scores: Float[Tensor, "sample prototype"], sharpness: float = 0.05, rounds: int = 3
) -> Float[Tensor, "sample prototype"]:
    r"""Soft assignments: each sample sums to one, and after ``rounds`` each prototype has nearly equal mass.

    .. math::
        Q \propto \mathrm{diag}(u) \exp(S / \epsilon) \mathrm{diag}(v),
        \quad Q^T 1 = \tfrac{1}{B} 1, \quad Q 1 = \tfrac{1}{K} 1

    Reference: Caron et al. 2020 (SwAV), Eq. 3 to 5; in logarithms, to avoid overflow.

    >>> sinkhorn(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), sharpness=1.0).tolist()  # only half of them can have the first
    [[0.5, 0.5], [0.5, 0.5]]
    """
    log_q = scores / sharpness
    for _ in range(rounds):
        log_q = log_q.log_softmax(0)
        log_q = log_q.log_softmax(1)
    return log_q.exp()


class Codes(EmbeddingTransform):
    """SwAV: adds codes of the full-size views, over the whole batch, without gradient.

    With a ``queue`` of earlier embeddings, the prototypes' mass is shared with those from epoch ``queue_epoch`` on: for
    batches that are much smaller than the number of prototypes.
    """

    formula = "Sinkhorn codes: every prototype gets the same share of the batch"

    def __init__(
        self, full: int = 2, sharpness: float = 0.05, rounds: int = 3, queue: int = 0, queue_epoch: float = 15.0
    ) -> None:
        super().__init__()
        self.full, self.sharpness, self.rounds = full, sharpness, rounds
        self.queue, self.queue_epoch = queue, queue_epoch
        self.memory = Queue(self.queue) if self.queue else None

    def forward(self, e: Embeddings) -> Embeddings:
        prototypes, z = e.require("prototypes").detach(), e.z[: self.full].detach()
        earlier = None if self.memory is None else self.memory(z)
        codes = []
        for v, view in enumerate(z):
            if earlier is not None and self.epoch >= self.queue_epoch:
                view = torch.cat((view, earlier[v]))
            codes.append(sinkhorn(similarities(view, prototypes, 1.0), self.sharpness, self.rounds)[: z.shape[1]])
        return replace(e, codes=torch.stack(codes))
