"""Aligning parts that predict one view from another; the target takes no gradient."""

from itertools import permutations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.align.distance import cosine
from glf.terms import Term, mean
from glf.types import Embeddings, Scalar


def regression(prediction: Float[Tensor, "batch dim"], target: Float[Tensor, "batch dim"]) -> Scalar:
    r"""Squared distance of unit vectors: 2 - 2 cos.

    .. math:: \frac{1}{n} \sum_i \left| \frac{p_i}{|p_i|} - \frac{t_i}{|t_i|} \right|^2

    Reference: Grill et al. 2020 (BYOL), Eq. 2.

    >>> import torch
    >>> float(regression(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]])))
    2.0
    """
    return (F.normalize(prediction, dim=-1) - F.normalize(target, dim=-1)).pow(2).sum(-1).mean()


class PredictView(Term):
    """SimSiam: the predictor's output of one view against the projection of the other, held fixed."""

    name, role, formula = "predict_view", "align", "-cos(p, sg z')"
    needs = frozenset({"z", "p"})

    def forward(self, e: Embeddings) -> Scalar:
        p = e.asked("p")
        return mean(cosine(p[v], e.z[w].detach()) for v, w in permutations(range(len(p)), 2))


class PredictTeacher(Term):
    """BYOL: the predictor's output of one view against the momentum encoder's projection of the other."""

    name, role, formula = "predict_teacher", "align", "|unit p - unit teacher'|^2"
    needs = frozenset({"z", "p", "teacher"})

    def forward(self, e: Embeddings) -> Scalar:
        p, teacher = e.asked("p"), e.asked("teacher").detach()
        return mean(regression(p[v], teacher[w]) for v, w in permutations(range(len(p)), 2))
