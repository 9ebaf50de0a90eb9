"""Aligning parts that compare a view's relations to others: to a queue, to prototypes, to the batch."""

from itertools import permutations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.nn.memory import Clusters
from glf.terms import Tempered, Term, across, mean
from glf.types import Embeddings, Scalar


def similarities(
    z: Float[Tensor, "batch dim"], to: Float[Tensor, "entry dim"], temperature: float
) -> Float[Tensor, "batch entry"]:
    """Cosines of every row with every entry, over a temperature."""
    return F.normalize(z, dim=-1) @ F.normalize(to, dim=-1).T / temperature


def expected_similarity(weights: Float[Tensor, "batch entry"], logits: Float[Tensor, "batch entry"]) -> Scalar:
    r"""The logits' mean under fixed weights: what a cross-entropy has beside its log-sum-exp.

    .. math:: -\frac{1}{n} \sum_i \sum_j q_{ij} s_{ij}

    >>> float(expected_similarity(torch.tensor([[0.25, 0.75]]), torch.tensor([[4.0, 8.0]])))
    -7.0
    """
    return -(weights * logits).sum(-1).mean()


class Relation(Term):
    """ReSSL: the strong views' similarities to a queue follow those of the weak view, which is the last.

    The relation of the weak view comes from the teacher, at a lower temperature. Reference: Zheng et al. 2021
    (ReSSL), Eq. 4 to 6.
    """

    name, role, formula = "relation", "align", "-sum_j softmax_j(cos(teacher', q_j) / sharp) cos(z, q_j) / temperature"
    needs = frozenset({"z", "teacher"})

    def __init__(self, temperature: float = 0.1, sharp: float = 0.04) -> None:
        super().__init__()
        self.temperature, self.sharp = temperature, sharp

    def forward(self, e: Embeddings) -> Scalar:
        queue = e.asked("queue")[-1]
        weights = similarities(e.asked("teacher")[-1].detach(), queue, self.sharp).softmax(-1)
        return mean(expected_similarity(weights, similarities(z, queue, self.temperature)) for z in e.z[:-1])


class SwappedPrediction(Tempered):
    """SwAV: each view's similarities to the prototypes under the other view's codes.

    Codes come from the views of full size, and every other view predicts them. Reference: Caron et al. 2020 (SwAV),
    Eq. 1 and 2, without the log-sum-exp (PrototypePartition).
    """

    name, role, formula = "swapped_prediction", "align", "-<code', cos(z, c)> / temperature"
    needs = frozenset({"z", "prototypes"})

    def forward(self, e: Embeddings) -> Scalar:
        codes, prototypes = e.asked("codes"), e.asked("prototypes")
        logits = [similarities(z, prototypes, self.temperature) for z in e.z]
        return mean(expected_similarity(codes[w], logits[v]) for v, w in across(e.z, codes))


class ClusterMatch(Term):
    """PCL: each view against the centre of its image's cluster, over that cluster's concentration.

    The mean over the numbers of clusters; 0 until there are clusters. Reference: Li et al. 2021 (PCL), Eq. 11.
    """

    name, role, formula = "cluster_match", "align", "-cos(z, centre) / phi"
    needs = frozenset({"z", "row"})

    def __init__(self, clusters: Clusters) -> None:
        super().__init__()
        self.clusters = clusters

    def forward(self, e: Embeddings) -> Scalar:
        c, row = self.clusters, e.asked("row")
        if not c.ready:
            return 0.0 * e.z.sum()
        own = assignments(c, row)
        logits = [cluster_logits(z, c) for z in e.z]
        return mean(-logit.gather(1, own).mean() for logit in logits)


def assignments(clusters: Clusters, row: Int[Tensor, " batch"]) -> Int[Tensor, "batch kind"]:
    """The entry of each row's cluster among all centres, one per number of clusters."""
    starts = torch.tensor([0, *clusters.counts[:-1]], device=row.device).cumsum(0)
    return clusters.assigned[:, row].T + starts


def cluster_logits(z: Float[Tensor, "batch dim"], clusters: Clusters) -> Float[Tensor, "batch entry"]:
    """Cosines with all centres, each over its concentration."""
    return F.normalize(z, dim=-1) @ clusters.centres.to(z).T / clusters.concentration.to(z)


def divergence(target: Float[Tensor, "batch entry"], logits: Float[Tensor, "batch entry"]) -> Scalar:
    r"""KL divergence of two softmax distributions, the first held fixed.

    .. math:: \frac{1}{n} \sum_i \sum_j p_{ij} (\log p_{ij} - \log q_{ij})

    >>> float(divergence(torch.zeros(1, 2), torch.zeros(1, 2)))
    0.0
    """
    log_p = target.detach().log_softmax(-1)
    return (log_p.exp() * (log_p - logits.log_softmax(-1))).sum(-1).mean()


class Invariance(Tempered):
    """ReLIC: what a view says about who it is among the batch does not depend on the augmentation.

    The Kullback-Leibler divergence between the two directions' distributions over the batch. Reference: Mitrovic et
    al. 2021 (ReLIC), Eq. 5; Tomasev et al. 2022 (ReLICv2) stop the gradient of the first, and so do we. Every other
    image of the batch is a negative; ReLICv2 draws a few of them, how many we could not verify.
    """

    name, role, formula = "invariance", "align", "KL(sg p(z, teacher') | p(z', teacher))"
    needs = frozenset({"z", "teacher"})

    def forward(self, e: Embeddings) -> Scalar:
        teacher = e.asked("teacher").detach()
        logits = {(v, w): similarities(e.z[v], teacher[w], self.temperature) for v, w in across(e.z, teacher)}
        return mean(divergence(logits[a], logits[b]) for a, b in permutations(logits, 2))
