"""Equipartition: a map that adds soft assignments to prototypes, the same mass for each."""

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
    r"""Rows that sum to one, as near as ``rounds`` get to columns of equal mass.

    .. math::
        Q \propto \mathrm{diag}(u) \exp(S / \epsilon) \mathrm{diag}(v),
        \quad Q^T 1 = \tfrac{1}{B} 1, \quad Q 1 = \tfrac{1}{K} 1

    Reference: Caron et al. 2020 (SwAV), Eq. 3 to 5; in logarithms, so that nothing overflows.

    >>> sinkhorn(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), sharpness=1.0).tolist()  # both cannot have the first
    [[0.5, 0.5], [0.5, 0.5]]
    """
    log_q = scores / sharpness
    for _ in range(rounds):
        log_q = log_q.log_softmax(0)
        log_q = log_q.log_softmax(1)
    return log_q.exp()


class Codes(EmbeddingTransform):
    """SwAV: codes of the views of full size, over the whole batch, without gradient.

    With a ``queue`` of earlier embeddings the mass is shared with those, once ``queue_epoch`` epochs have filled it:
    for batches much smaller than the number of prototypes.
    """

    formula = "Sinkhorn codes: every prototype takes the same share of the batch"

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
        for v, rows in enumerate(z):
            if earlier is not None and self.epoch >= self.queue_epoch:
                rows = torch.cat((rows, earlier[v]))
            codes.append(sinkhorn(similarities(rows, prototypes, 1.0), self.sharpness, self.rounds)[: z.shape[1]])
        return replace(e, codes=torch.stack(codes))
