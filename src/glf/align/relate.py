"""Aligning parts that compare a view's relations to others: to a queue, to prototypes, to the batch."""

from itertools import permutations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.data.moving import moved
from glf.nn.memory import Clusters
from glf.terms import Tempered, Term, across, mean
from glf.types import Embeddings, Scalar


def similarities(
    z: Float[Tensor, "batch dim"], to: Float[Tensor, "entry dim"], temperature: float
) -> Float[Tensor, "batch entry"]:
    """Cosines of every row with every entry, over a temperature."""
    return F.normalize(z, dim=-1) @ F.normalize(to, dim=-1).T / temperature


def to_prototypes(e: Embeddings, temperature: float) -> list[Float[Tensor, "batch prototype"]]:
    """Every view's similarities to the prototypes, computed once for the aligning and the constraining part."""
    prototypes = e.asked("prototypes")
    return e.once(("to_prototypes", temperature), lambda: [similarities(z, prototypes, temperature) for z in e.z])


def to_queue(e: Embeddings, temperature: float) -> list[Float[Tensor, "batch entry"]]:
    """The strong views' similarities to the weak view's queue, likewise."""
    queue = e.asked("queue")[-1]
    return e.once(("to_queue", temperature), lambda: [similarities(z, queue, temperature) for z in e.z[:-1]])


def to_teacher(e: Embeddings, temperature: float) -> dict[tuple[int, int], Float[Tensor, "batch entry"]]:
    """Each view's similarities to the teacher's outputs of each other view, likewise."""
    teacher = e.asked("teacher").detach()
    pairs = across(e.z, teacher)
    return e.once(
        ("to_teacher", temperature),
        lambda: {(v, w): similarities(e.z[v], teacher[w], temperature) for v, w in pairs},
    )


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
        if len(e.asked("teacher")) != len(e.z):
            raise ValueError("relations are taught by the last view, which must be of full size: not with small crops")
        weights = similarities(e.asked("teacher")[-1].detach(), e.asked("queue")[-1], self.sharp).softmax(-1)
        return mean(expected_similarity(weights, logits) for logits in to_queue(e, self.temperature))


class SwappedPrediction(Tempered):
    """SwAV: each view's similarities to the prototypes under the other view's codes.

    Codes come from the views of full size, and every other view predicts them. Reference: Caron et al. 2020 (SwAV),
    Eq. 1 and 2, without the log-sum-exp (PrototypePartition).
    """

    name, role, formula = "swapped_prediction", "align", "-<code', cos(z, c)> / temperature"
    needs = frozenset({"z", "prototypes"})

    def forward(self, e: Embeddings) -> Scalar:
        codes, logits = e.asked("codes"), to_prototypes(e, self.temperature)
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

    @property
    def asleep(self) -> bool:
        return not self.clusters.ready

    def forward(self, e: Embeddings) -> Scalar:
        c, row = self.clusters, e.asked("row")
        if not c.ready:
            return 0.0 * e.z.sum()
        own = assignments(c, row)
        return mean(-logits.gather(1, own).mean() for logits in to_clusters(e, c))


def assignments(clusters: Clusters, row: Int[Tensor, " batch"]) -> Int[Tensor, "batch kind"]:
    """The entry of each row's cluster among all centres, one per number of clusters."""
    starts = torch.tensor([0, *clusters.counts[:-1]]).cumsum(0)
    return clusters.assigned[:, row].T + moved(starts, row.device)


def to_clusters(e: Embeddings, clusters: Clusters) -> list[Float[Tensor, "batch entry"]]:
    """Every view's cosines with all centres, each over its concentration; computed once."""
    centres, concentration = clusters.centres.to(e.z), clusters.concentration.to(e.z)
    return e.once("to_clusters", lambda: [F.normalize(z, dim=-1) @ centres.T / concentration for z in e.z])


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
        logits = to_teacher(e, self.temperature)
        return mean(divergence(logits[a], logits[b]) for a, b in permutations(logits, 2))
