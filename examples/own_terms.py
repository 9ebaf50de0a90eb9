"""A plug-in: glf pretrain --plugin examples/own_terms.py --method huber+norm --options norm.weight 0.2"""

from torch import Tensor
from torch.nn import functional as F

from glf import Covariance, Embeddings, Heads, Method, Objective, Term, Variance, register_constraint, register_method


class NormPenalty(Term):
    name, role, formula = "norm", "constrain", "(|z| - 1)^2"

    def forward(self, e: Embeddings) -> Tensor:
        return (e.z.norm(dim=-1) - 1).pow(2).mean()


class Huber(Term):
    name, role, formula = "huber", "align", "huber(z - z')"

    def forward(self, e: Embeddings) -> Tensor:
        return F.huber_loss(e.z, e.z.roll(1, 0))


def huber(weight: float) -> Objective:
    return Objective(align=weight * Huber(), constrain=25 * Variance() + 2 * Covariance())


register_constraint("norm", lambda weight: weight * NormPenalty(), {"weight": 0.1})
register_method(Method(name="huber", objective=huber, options={"weight": 50.0}, heads=Heads(projector=(512, 512))))
