"""Constraining part of MetAug's contrast, and the training of its feature generator."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.similarity import unified_log_sums_of, unified_loss
from glf.terms import Term
from glf.types import Embeddings, Scalar


class UnifiedPartition(Term):
    """Pushes every sample away from all other images; with ``generated``, also from generated features.

    With ``generated``, the term also trains the generator, by a look-ahead (meta) gradient (`look_ahead_loss`).
    ``emphasis`` is the weight of the generator's loss relative to the term's; one over the term's own weight gives the
    generator weight one, as in the paper.

    Differs from the paper: the look-ahead step moves the embeddings, not the weights of the encoder. It is still
    second-order, but needs no second forward pass, and no gradient reaches the encoder through the generator. The
    margin injection, with weight 1e-11, is left out: it is below the resolution of float32.
    """

    role, formula = "constrain", "log sum_n exp(sharpness s_n) + log(1 + exp(-(both)))"

    def __init__(
        self, sharpness: float = 16.0, generated: bool = False, step: float = 1.0, emphasis: float = 1.0
    ) -> None:
        super().__init__()
        self.sharpness, self.generated, self.step, self.emphasis = sharpness, generated, step, emphasis
        self.name = "generated_partition" if generated else "unified_partition"  # type: ignore[misc]
        self.needs = frozenset({"z", "generated"}) if generated else frozenset({"z"})

    def forward(self, e: Embeddings) -> Scalar:
        attracting, repelling = unified_log_sums_of(e, self.sharpness, self.generated)
        value = (repelling + F.softplus(-(attracting + repelling))).mean()
        if self.generated and torch.is_grad_enabled():
            ahead = look_ahead_loss(e.z, e.require("generated"), self.sharpness, self.step)
            # Adds a gradient for the generator and nothing to the value.
            value = value + self.emphasis * (ahead - ahead.detach())
        return value


def look_ahead_loss(
    z: Float[Tensor, "view batch dim"], generated: Float[Tensor, "view batch dim"], sharpness: float, step: float
) -> Scalar:
    r"""Loss of the embeddings after one gradient step of the loss with generated features.

    .. math:: L\left(z - \eta m \frac{\partial L(z \cup g)}{\partial z}\right)

    The factor m, the number of samples, undoes the mean in the loss, so that each sample moves by its own gradient.
    Only g gets a gradient.
    """
    fixed = z.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(unified_loss(torch.cat((fixed, generated)), sharpness), fixed, create_graph=True)
    return unified_loss(z.detach() - step * z.shape[:2].numel() * gradient, sharpness)
