"""MetAug's optimisation-unified contrast, and features that a generator adds to it."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.terms import Term
from glf.types import Embeddings, Scalar

PerSample = Float[Tensor, " sample"]


def unified(z: Float[Tensor, "view batch dim"], sharpness: float) -> tuple[PerSample, PerSample]:
    r"""For each sample the log-sum-exps over the other views of its image and over all other images.

    .. math::
        B_a = \log \sum_{p \in P(a)} e^{-\gamma s_{ap}}, \quad A_a = \log \sum_{b \notin P(a) \cup a} e^{\gamma s_{ab}},
        \quad s_{ab} = \frac{1 + \cos(z_a, z_b)}{2}

    Reference: Li et al. 2022 (MetAug), Eq. 8, without margins as their published settings have it. The loss is
    :math:`\frac{1}{m} \sum_a \log(1 + e^{A_a + B_a})`, and :math:`\log(1 + e^x) = x + \log(1 + e^{-x})` splits it: B
    aligns, the rest constrains. With two views it is InfoNCE at a temperature of 2 / sharpness.
    """
    views, batch, _ = z.shape
    u = F.normalize(z.flatten(0, 1), dim=-1)
    s = sharpness * (1 + u @ u.T) / 2
    image = torch.arange(batch, device=z.device).repeat(views)
    same = image.unsqueeze(1) == image
    itself = torch.eye(len(u), dtype=torch.bool, device=z.device)
    attracting = (-s).masked_fill(~same | itself, -torch.inf).logsumexp(1)
    return attracting, s.masked_fill(same, -torch.inf).logsumexp(1)


def unified_loss(z: Float[Tensor, "view batch dim"], sharpness: float) -> Scalar:
    """Both parts together."""
    attracting, repelling = unified(z, sharpness)
    return F.softplus(attracting + repelling).mean()


class UnifiedMatch(Term):
    """Every view near every other of its image, the farthest most; with ``generated`` among generated features too.

    Those take no gradient here: they learn by what they bring (UnifiedPartition).
    """

    role, formula = "align", "log sum_p exp(-sharpness s_p), s = (1 + cos) / 2"

    def __init__(self, sharpness: float = 16.0, generated: bool = False) -> None:
        super().__init__()
        self.sharpness, self.generated = sharpness, generated
        self.name = "generated_match" if generated else "unified_match"  # type: ignore[misc]
        self.needs = frozenset({"z", "generated"}) if generated else frozenset({"z"})

    def forward(self, e: Embeddings) -> Scalar:
        return unified_of(e, self.sharpness, self.generated)[0].mean()


def unified_of(e: Embeddings, sharpness: float, generated: bool) -> tuple[PerSample, PerSample]:
    """Both log-sum-exps of the views, with generated ones as further views; computed once for both parts."""
    samples = torch.cat((e.z, e.asked("generated").detach())) if generated else e.z
    return e.once(("unified", sharpness, generated), lambda: unified(samples, sharpness))
