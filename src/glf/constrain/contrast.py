"""Log-partition terms: repel samples from each other, a queue, prototypes, clusters or classes; polarisation."""

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.nn.memory import Clusters, Queue
from glf.similarity import (
    off_diagonal,
    similarities,
    similarities_to_clusters,
    similarities_to_prototypes,
    similarities_to_queue,
    similarities_to_teacher,
)
from glf.terms import EmbeddingTransform, Tempered, Term, cross_view_pairs, mean, two_views
from glf.types import Embeddings, Scalar


def log_partition(z: Float[Tensor, "sample dim"], temperature: float) -> Scalar:
    r"""Mean log-sum-exp of each sample's similarities to all others: the denominator of InfoNCE.

    .. math:: \frac{1}{m} \sum_a \log \sum_{b \ne a} \exp\left(\frac{\cos(z_a, z_b)}{\tau}\right)

    Reference: Chen et al. 2020 (SimCLR), Eq. 1; the second term of the paper's Eq. 2 (uniformity).

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> round(float(log_partition(z, temperature=1.0)), 4)  # log(1 + 1 + 1/e)
    0.862
    """
    u = F.normalize(z, dim=-1)
    similarity = u @ u.T / temperature
    anchor = torch.eye(len(z), dtype=torch.bool, device=z.device)
    return similarity.masked_fill(anchor, -torch.inf).logsumexp(-1).mean()


class LogPartition(Tempered):
    """SimCLR: the log-partition over all views of all images of the batch."""

    name, role = "log_partition", "constrain"
    formula = "log sum_b exp(cos(z, z_b) / temperature)"

    def forward(self, e: Embeddings) -> Scalar:
        return log_partition(e.z.flatten(0, 1), self.temperature)


def debiased_partition(
    z0: Float[Tensor, "batch dim"],
    z1: Float[Tensor, "batch dim"],
    temperature: float,
    same: float = 0.1,
    hardness: float = 0.0,
) -> Scalar:
    r"""The log-partition with negatives corrected for samples of the anchor's own class, and weighted by hardness.

    .. math::
        \frac{1}{m} \sum_a \log\left(e^{s_a^+} + N_a\right), \quad
        N_a = \max\left(\frac{\sum_b w_{ab} e^{s_{ab}} - N \tau^+ e^{s_a^+}}{1 - \tau^+}, N e^{-1/\tau}\right), \quad
        w_{ab} = \frac{e^{\beta s_{ab}}}{\frac{1}{N} \sum_c e^{\beta s_{ac}}}

    over the N = 2n - 2 other samples. ``same`` is :math:`\tau^+`, the probability that one is of the anchor's class;
    ``hardness`` is :math:`\beta`, 0 for DCL.

    Reference: Chuang et al. 2020 (DCL), Eq. 8; Robinson et al. 2021 (HCL), Eq. 5 and its code, with gradient through
    the weights. lightly's DCL is a different method (decoupled contrastive learning).

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> round(float(debiased_partition(z, z, 1.0, same=0.0)), 4)  # log(e + 1 + 1)
    1.5514
    """
    n, z = len(z0), torch.cat((z0, z1))
    logits = similarities(z, z, temperature)
    image = torch.arange(n, device=z.device).repeat(2)
    positive = logits.diagonal(n).repeat(2)  # the same from either view
    importance = (hardness * logits).masked_fill(image.unsqueeze(1) == image, -torch.inf)
    count = 2 * n - 2
    total = count * ((logits + importance).logsumexp(1) - importance.logsumexp(1)).exp()  # sum_b w_ab exp(s_ab)
    debiased = (total - count * same * positive.exp()) / (1 - same)
    return (positive.exp() + debiased.clamp_min(count * math.exp(-1 / temperature))).log().mean()


class DebiasedPartition(Term):
    """DCL; with a positive ``hardness``, HCL. Defined for two views."""

    name, role = "debiased_partition", "constrain"
    formula = "log(exp s+ + max((sum_b w_b exp s_b - N same exp s+) / (1 - same), N exp(-1 / temperature)))"

    def __init__(self, temperature: float = 0.5, same: float = 0.1, hardness: float = 0.0) -> None:
        super().__init__()
        self.temperature, self.same, self.hardness = temperature, same, hardness

    def forward(self, e: Embeddings) -> Scalar:
        return debiased_partition(*two_views(e.z, self.name), self.temperature, self.same, self.hardness)


def polarisation(z: Float[Tensor, "sample dim"], near: float, far: float) -> Scalar:
    r"""Penalty on distances between two thresholds, which pushes them to either side.

    .. math:: \frac{1}{m(m-1)} \sum_{a \ne b} \left|\min\left((D_{ab} - \delta^+)(D_{ab} - \delta^-), 0\right)\right|,
        \quad D_{ab} = \frac{1 - \cos(z_a, z_b)}{2}

    Reference: Chen et al. 2021 (LMCL), the distance polarisation regulariser.
    Not verified: formula and thresholds (from memory of the paper; no code was published). Distances in [0, 1] and the
    mean over pairs are our choice.

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # a distance of one half
    >>> round(float(polarisation(z, near=0.4, far=0.7)), 4)
    0.02
    """
    u = F.normalize(z, dim=-1)
    distance = (1 - u @ u.T) / 2
    return off_diagonal(((near - distance) * (distance - far)).clamp_min(0)).mean()


class Polarisation(Term):
    """LMCL: pushes distances out of the gap between ``near`` and ``far``."""

    name, role, formula = "polarisation", "constrain", "|min((D - near)(D - far), 0)|, D = (1 - cos) / 2"

    def __init__(self, near: float = 0.1, far: float = 0.5) -> None:
        super().__init__()
        self.near, self.far = near, far

    def forward(self, e: Embeddings) -> Scalar:
        return polarisation(e.z.flatten(0, 1), self.near, self.far)


class FromQueue(EmbeddingTransform):
    """Adds a queue of earlier batches: of the EMA teacher's outputs, or of the field ``of``.

    With ``current``, this batch is in it already.
    """

    def __init__(self, size: int, of: str = "teacher", *, current: bool = False) -> None:
        super().__init__()
        self.size, self.of, self.current = size, of, current
        self.formula = f"queue of the {of}'s {'latest' if current else 'earlier'} outputs"  # type: ignore[misc]
        self.memory = Queue(size)

    def forward(self, e: Embeddings) -> Embeddings:
        keys = e.require(self.of)
        keys = keys.unsqueeze(0) if keys.ndim == 2 else keys
        queue = self.memory(keys)
        if self.current:
            queue = torch.cat((F.normalize(keys.detach(), dim=2), queue), 1)[:, : self.size]
        return replace(e, queue=queue)


def queue_partition(
    z: Float[Tensor, "batch dim"],
    positive: Float[Tensor, "batch dim"],
    queue: Float[Tensor, "entry dim"],
    temperature: float,
) -> Scalar:
    r"""Log-sum-exp over the positive and a queue of negatives.

    .. math:: \frac{1}{n} \sum_i \log\left(e^{\cos(z_i, t_i)/\tau} + \sum_j e^{\cos(z_i, q_j)/\tau}\right)

    Reference: He et al. 2020 (MoCo), Eq. 1.

    >>> one = torch.tensor([[1.0, 0.0]])
    >>> round(float(queue_partition(one, one, torch.tensor([[0.0, 1.0]]), 1.0)), 4)  # log(e + 1)
    1.3133
    """
    own = (F.normalize(z, dim=-1) * F.normalize(positive, dim=-1)).sum(-1, keepdim=True) / temperature
    return torch.cat((own, similarities(z, queue, temperature)), 1).logsumexp(1).mean()


class QueuePartition(Tempered):
    """MoCo: the log-partition over the positive and a queue of the EMA teacher's outputs."""

    name, role = "queue_partition", "constrain"
    formula = "log(exp(cos(z, teacher') / temperature) + sum_j exp(cos(z, q_j) / temperature))"
    needs = frozenset({"z", "teacher"})

    def forward(self, e: Embeddings) -> Scalar:
        teacher, queue = e.require("teacher").detach(), e.require("queue")
        pairs = cross_view_pairs(e.z, teacher)
        return mean(queue_partition(e.z[v], teacher[w], queue[w], self.temperature) for v, w in pairs)


def entry_partition(logits: Float[Tensor, "batch entry"]) -> Scalar:
    r"""Mean log-sum-exp over entries.

    .. math:: \frac{1}{n} \sum_i \log \sum_j e^{s_{ij}}

    >>> round(float(entry_partition(torch.zeros(1, 2))), 4)
    0.6931
    """
    return logits.logsumexp(-1).mean()


class RelationPartition(Tempered):
    """ReSSL: the log-partition over the queue, for every view but the last (weak) one."""

    name, role, formula = "relation_partition", "constrain", "log sum_j exp(cos(z, q_j) / temperature)"

    def forward(self, e: Embeddings) -> Scalar:
        return mean(entry_partition(logits) for logits in similarities_to_queue(e, self.temperature))


class TeacherPartition(Tempered):
    """ReLIC: the log-partition over the EMA teacher's outputs of the whole batch."""

    name, role, formula = "teacher_partition", "constrain", "log sum_b exp(cos(z, teacher'_b) / temperature)"
    needs = frozenset({"z", "teacher"})

    def forward(self, e: Embeddings) -> Scalar:
        return mean(entry_partition(logits) for logits in similarities_to_teacher(e, self.temperature).values())


class ClassPartition(Term):
    """The log-partition over classes: with the score of the true class, the cross-entropy."""

    name, role, formula = "class_partition", "constrain", "log sum_c exp(score_c)"
    needs = frozenset({"z", "scores"})

    def forward(self, e: Embeddings) -> Scalar:
        return mean(entry_partition(scores) for scores in e.require("scores"))


def smoothed_partition(scores: Float[Tensor, "batch entry"], smoothing: float) -> Scalar:
    r"""Mean log-sum-exp minus a share of the mean score: the smoothed cross-entropy without the own score.

    .. math:: \frac{1}{n} \sum_i \left(\log \sum_j e^{s_{ij}} - \frac{\epsilon}{m} \sum_j s_{ij}\right)

    Reference: Szegedy et al. 2016, Eq. 3, label smoothing with the uniform distribution over all m entries.

    >>> round(float(smoothed_partition(torch.ones(1, 2), smoothing=0.5)), 4)  # 1 + log 2 - 1/2
    1.1931
    """
    return entry_partition(scores) - smoothing * scores.mean()


class InstancePartition(Term):
    """DIET: the log-partition over all training images, less the smoothed part of the target."""

    name, role, formula = "instance_partition", "constrain", "log sum_j exp(score_j) - smoothing mean_j score_j"
    needs = frozenset({"z", "instance_scores"})

    def __init__(self, smoothing: float = 0.8) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, e: Embeddings) -> Scalar:
        return mean(smoothed_partition(scores, self.smoothing) for scores in e.require("instance_scores"))


class PrototypePartition(Tempered):
    """SwAV: the log-partition over prototypes, for each view once per code that it predicts."""

    name, role, formula = "prototype_partition", "constrain", "log sum_k exp(cos(z, c_k) / temperature)"
    needs = frozenset({"z", "prototypes"})

    def forward(self, e: Embeddings) -> Scalar:
        values = [entry_partition(logits) for logits in similarities_to_prototypes(e, self.temperature)]
        return mean(values[v] for v, _ in cross_view_pairs(e.z, e.require("codes")))


class ClusterPartition(Term):
    """PCL: the log-partition over cluster centres, averaged over numbers of clusters; 0 until the first clustering."""

    name, role, formula = "cluster_partition", "constrain", "log sum_c exp(cos(z, c) / phi_c)"

    def __init__(self, clusters: Clusters) -> None:
        super().__init__()
        self.clusters = clusters

    @property
    def inactive(self) -> bool:
        return not self.clusters.ready

    def forward(self, e: Embeddings) -> Scalar:
        if not self.clusters.ready:
            return 0.0 * e.z.sum()
        counts = list(self.clusters.counts)
        by_count = [torch.split(logits, counts, dim=1) for logits in similarities_to_clusters(e, self.clusters)]
        return mean(entry_partition(logits) for parts in by_count for logits in parts)
