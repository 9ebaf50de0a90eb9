"""Aligning parts that compare similarities to other samples: a queue, prototypes, clusters, the batch."""

from itertools import permutations

from glf.nn.memory import Clusters
from glf.similarity import (
    expected_similarity,
    kl_divergence,
    own_clusters,
    similarities,
    similarities_to_clusters,
    similarities_to_prototypes,
    similarities_to_queue,
    similarities_to_teacher,
)
from glf.terms import Tempered, Term, cross_view_pairs, mean
from glf.types import Embeddings, Scalar


class Relation(Term):
    """ReSSL: the strong views' similarities to a queue follow those of the weak view, which is the last.

    The similarities of the weak view are the teacher's, at a lower temperature (``sharp``). Reference: Zheng et al.
    2021 (ReSSL), Eq. 4 to 6.
    """

    name, role, formula = "relation", "align", "-sum_j softmax_j(cos(teacher', q_j) / sharp) cos(z, q_j) / temperature"
    needs = frozenset({"z", "teacher"})

    def __init__(self, temperature: float = 0.1, sharp: float = 0.04) -> None:
        super().__init__()
        self.temperature, self.sharp = temperature, sharp

    def forward(self, e: Embeddings) -> Scalar:
        if len(e.require("teacher")) != len(e.z):
            raise ValueError("ressl has its target from the last view, which must be of full size: use no small crops")
        weights = similarities(e.require("teacher")[-1].detach(), e.require("queue")[-1], self.sharp).softmax(-1)
        return mean(expected_similarity(weights, logits) for logits in similarities_to_queue(e, self.temperature))


class SwappedPrediction(Tempered):
    """SwAV: expected similarity of each view to the prototypes under another view's codes.

    Codes come from the full-size views; every other view predicts them. Reference: Caron et al. 2020 (SwAV),
    Eq. 1 and 2, without the log-sum-exp (PrototypePartition).
    """

    name, role, formula = "swapped_prediction", "align", "-<code', cos(z, c)> / temperature"
    needs = frozenset({"z", "prototypes"})

    def forward(self, e: Embeddings) -> Scalar:
        codes, logits = e.require("codes"), similarities_to_prototypes(e, self.temperature)
        return mean(expected_similarity(codes[w], logits[v]) for v, w in cross_view_pairs(e.z, codes))


class ClusterMatch(Term):
    """PCL: each view against the centre of its image's cluster, over the concentration phi of that cluster.

    The mean over all numbers of clusters; 0 until the first clustering. Reference: Li et al. 2021 (PCL), Eq. 11.
    """

    name, role, formula = "cluster_match", "align", "-cos(z, centre) / phi"
    needs = frozenset({"z", "indices"})

    def __init__(self, clusters: Clusters) -> None:
        super().__init__()
        self.clusters = clusters

    @property
    def inactive(self) -> bool:
        return not self.clusters.ready

    def forward(self, e: Embeddings) -> Scalar:
        indices = e.require("indices")
        if not self.clusters.ready:
            return 0.0 * e.z.sum()
        own = own_clusters(self.clusters, indices)
        return mean(-logits.gather(1, own).mean() for logits in similarities_to_clusters(e, self.clusters))


class Invariance(Tempered):
    """ReLIC invariance: KL divergence between the instance distributions of two augmented views.

    Reference: Mitrovic et al. 2021 (ReLIC), Eq. 5, with the stop-gradient on the first distribution of Tomasev et al.
    2022 (ReLICv2).
    Not verified: the number of negatives. ReLICv2 draws a few; we use every other image of the batch.
    """

    name, role, formula = "invariance", "align", "KL(sg p(z, teacher') | p(z', teacher))"
    needs = frozenset({"z", "teacher"})

    def forward(self, e: Embeddings) -> Scalar:
        logits = similarities_to_teacher(e, self.temperature)
        return mean(kl_divergence(logits[a], logits[b]) for a, b in permutations(logits, 2))
