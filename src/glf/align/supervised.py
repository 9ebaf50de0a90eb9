"""Aligning parts of the methods with a target per image: a label, or the image itself (DIET)."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.terms import Tempered, Term, mean
from glf.types import Embeddings, Scalar


def same_class(z: Float[Tensor, "sample dim"], target: Int[Tensor, " sample"], temperature: float) -> Scalar:
    r"""Negative mean similarity to all other samples of the same class: the numerator of SupCon.

    .. math:: -\frac{1}{m} \sum_a \frac{1}{|P(a)|} \sum_{p \in P(a)} \frac{\cos(z_a, z_p)}{\tau}

    Reference: Khosla et al. 2020 (SupCon), Eq. 2 (L_out). Their code multiplies the loss by temperature / 0.07; we
    follow the paper, which does not. solo-learn's SupCon is L_in, with the logarithm outside of the sum.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> float(same_class(z, torch.tensor([0, 0, 0]), temperature=1.0))  # one pair of three agrees
    -0.3333333432674408
    """
    u = F.normalize(z, dim=-1)
    positive = (target.unsqueeze(1) == target).to(z.dtype).fill_diagonal_(0)
    return -((u @ u.T / temperature * positive).sum(1) / positive.sum(1).clamp_min(1)).mean()


class SameClass(Tempered):
    """Pulls all views of all images of a class together (SupCon)."""

    name, role, formula = "same_class", "align", "-mean_{same class} cos(z, z_p) / temperature"
    needs = frozenset({"z", "target"})

    def forward(self, e: Embeddings) -> Scalar:
        return same_class(e.z.flatten(0, 1), e.require("target").repeat(len(e.z)), self.temperature)


def class_score(scores: Float[Tensor, "batch class"], target: Int[Tensor, " batch"]) -> Scalar:
    r"""Negative score of the true class: the numerator of the cross-entropy.

    .. math:: -\frac{1}{n} \sum_i s_{i, y_i}

    >>> import torch
    >>> float(class_score(torch.tensor([[1.0, 5.0]]), torch.tensor([1])))
    -5.0
    """
    return -scores.gather(1, target.unsqueeze(1)).mean()


class ClassScore(Term):
    """Negative score of the true class, from a linear classifier."""

    name, role, formula = "class_score", "align", "-score of the true class"
    needs = frozenset({"z", "scores", "target"})

    def forward(self, e: Embeddings) -> Scalar:
        target = e.require("target")
        return mean(class_score(scores, target) for scores in e.require("scores"))


class InstanceScore(Term):
    """DIET: negative score of the image itself among all training images.

    The cross-entropy with label smoothing is -(1 - smoothing) s_own - smoothing mean_j s_j + log sum_j exp(s_j): this
    is its first summand, InstancePartition the others. Reference: Ibrahim et al. 2024 (DIET), with PyTorch's smoothing.
    """

    name, role, formula = "instance_score", "align", "-(1 - smoothing) score of the image itself"
    needs = frozenset({"z", "instance_scores", "instance"})

    def __init__(self, smoothing: float = 0.8) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, e: Embeddings) -> Scalar:
        own = e.require("instance")
        return (1 - self.smoothing) * mean(class_score(scores, own) for scores in e.require("instance_scores"))
