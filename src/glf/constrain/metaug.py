"""The constraining part of MetAug's contrast, and how its generator learns."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.similarity import unified_log_sums_of, unified_loss
from glf.terms import Term
from glf.types import Embeddings, Scalar


class UnifiedPartition(Term):
    """Every sample far from all other images; with ``generated``, from generated features too, which then learn.

    Differs from the paper: the generator's objective is the loss of embeddings moved one step along the gradient that
    its features cause, where the paper moves the encoder's weights. It is second-order all the same, and needs no
    second forward; no gradient reaches the encoder through the generator. ``emphasis`` is the weight of that objective
    beside the term's own, one over which gives the generator the weight one that it has in the paper. The margin
    injection, of weight 1e-11, is left out: float32 does not see it.
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
            outlook = looked_ahead(e.z, e.require("generated"), self.sharpness, self.step)
            # A gradient for the generator, and nothing else.
            value = value + self.emphasis * (outlook - outlook.detach())
        return value


def looked_ahead(
    z: Float[Tensor, "view batch dim"], generated: Float[Tensor, "view batch dim"], sharpness: float, step: float
) -> Scalar:
    r"""The loss of embeddings after one step that the generated features asked for.

    .. math:: L\left(z - \eta m \frac{\partial L(z \cup g)}{\partial z}\right)

    with m samples, because the loss is their mean: a step is then of each sample's own gradient. It has a gradient
    for g alone.
    """
    fixed = z.detach().requires_grad_()
    (towards,) = torch.autograd.grad(unified_loss(torch.cat((fixed, generated)), sharpness), fixed, create_graph=True)
    return unified_loss(z.detach() - step * z.shape[:2].numel() * towards, sharpness)
