"""Centred and sharpened codes of the EMA teacher (DINO): prototypes stay in use, and codes are decided."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from glf.nn.memory import RunningCentre
from glf.similarity import similarities
from glf.terms import EmbeddingTransform
from glf.types import Embeddings


def centred_codes(
    scores: Float[Tensor, "*view batch prototype"], centre: Float[Tensor, " prototype"], sharp: float
) -> Float[Tensor, "*view batch prototype"]:
    r"""Soft assignments to prototypes after subtracting each prototype's mean score.

    .. math:: q_{ik} = \mathrm{softmax}_k\left(\frac{s_{ik} - m_k}{\tau}\right)

    Reference: Caron et al. 2021 (DINO), Eq. 1 and 4.

    >>> centred_codes(torch.tensor([[2.0, 1.0]]), torch.tensor([1.0, 0.0]), sharp=0.1).tolist()  # both are 1 above
    [[0.5, 0.5]]
    """
    return ((scores - centre) / sharp).softmax(-1)


class CentredCodes(EmbeddingTransform):
    """DINO: adds the EMA teacher's codes of the full-size views, by its own prototypes, without gradient.

    The centre is the exponential moving average of the mean score over the batches before, 0 at first; ``old`` is the
    weight of its previous value. Over ``warmup`` epochs the temperature changes linearly, once per epoch, from
    ``sharp_start`` to ``sharp``.
    """

    formula = "the teacher's softmax_k((cos(teacher, c_k) - centre_k) / sharp): no prototype takes all"
    needs = frozenset({"teacher", "teacher_prototypes"})

    def __init__(self, sharp: float = 0.04, sharp_start: float = 0.04, warmup: int = 0, old: float = 0.9) -> None:
        super().__init__()
        self.sharp, self.sharp_start, self.warmup, self.old = sharp, sharp_start, warmup, old
        self.memory = RunningCentre(old)

    def temperature(self) -> float:
        """The teacher's temperature in this epoch; after ``warmup`` epochs, and in the last of them, ``sharp``."""
        progress = min(1.0, int(self.epoch) / (self.warmup - 1)) if self.warmup > 1 else 1.0
        return self.sharp_start + (self.sharp - self.sharp_start) * progress

    def forward(self, e: Embeddings) -> Embeddings:
        teacher, prototypes = e.require("teacher").detach(), e.require("teacher_prototypes").detach()
        scores = torch.stack([similarities(view, prototypes, 1.0) for view in teacher])
        return replace(e, codes=centred_codes(scores, self.memory(scores), self.temperature()))
