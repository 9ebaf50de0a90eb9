"""TODO."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.device import to_device
from glf.nn.memory import Clusters
from glf.terms import Term, across, two
from glf.types import Embeddings, Scalar


def cross_correlation(z0: Float[Tensor, "batch dim"], z1: Float[Tensor, "batch dim"]) -> Float[Tensor, "dim dim"]:
    r"""Correlation of every dimension of one view with every dimension of the other, for standardised views.

    .. math:: C = \hat z_0^T \hat z_1 / n

    Reference: Zbontar et al. 2021 (Barlow Twins), Eq. 2. Divided by the batch's size, never by the dimension.
    """
    return z0.T @ z1 / len(z0)


def correlation_of_views(e: Embeddings, v: int, w: int) -> Float[Tensor, "dim dim"]:
    """The cross-correlation of two views, computed once for the aligning and the constraining part."""
    return e.cached(("cross_correlation", v, w), lambda: cross_correlation(e.z[v], e.z[w]))


Cells = Float[Tensor, "batch cell local"]


def locations(boxes: Float[Tensor, "batch 4"], cells: int) -> Float[Tensor, "batch {cells} 2"]:
    """Where the centres of a square map's cells lie in the image, row by row; a flipped view's run from right to left.

    >>> locations(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), 4)[0, 0].tolist()  # the first cell, of a flipped view
    [0.75, 0.25]
    """
    side = math.isqrt(cells)
    if side * side != cells:
        raise ValueError(f"a map of {cells} cells is not square")
    at = (torch.arange(side, dtype=boxes.dtype, device=boxes.device) + 0.5) / side
    x0, y0, x1, y1 = boxes.unsqueeze(2).unbind(1)
    x, y = torch.lerp(x0, x1, at), torch.lerp(y0, y1, at)
    return torch.stack((x.unsqueeze(1).expand(-1, side, -1), y.unsqueeze(2).expand(-1, -1, side)), 3).flatten(1, 2)


def nearest_cells(
    distance: Float[Tensor, "batch cell candidate"], count: int
) -> tuple[Int[Tensor, "batch match"], Int[Tensor, "batch match"]]:
    """The cells that are nearest to any candidate, at most ``count`` of them, and their candidates."""
    least, candidate = distance.min(2)
    cell = least.topk(min(count, least.shape[1]), dim=1, largest=False).indices
    return cell, candidate.gather(1, cell)


def matched(
    a: Cells, b: Cells, distance: Float[Tensor, "batch cell candidate"], count: int
) -> tuple[Float[Tensor, "batch match local"], Float[Tensor, "batch match local"]]:
    """Cells of a that have a near candidate in b, with it."""
    cell, candidate = nearest_cells(distance.detach(), count)
    return tuple(x.gather(1, i.unsqueeze(2).expand(-1, -1, x.shape[2])) for x, i in ((a, cell), (b, candidate)))  # type: ignore[return-value]


def matches(e: Embeddings, first: int, second: int) -> list[tuple[Tensor, Tensor]]:
    """Eight sets of matched cells: by feature and by location, from either view, with either number of matches.

    VICRegL's code goes over both orders of the two views, and keeps ``first`` matches of the one that comes first.
    """

    def compute() -> list[tuple[Tensor, Tensor]]:
        (a, b), boxes = two(e.require("maps"), "VICRegL"), e.require("boxes")
        here, there = locations(boxes[0], a.shape[1]), locations(boxes[1], b.shape[1])
        found = []
        for distance in (torch.cdist(a.detach(), b.detach()), torch.cdist(here.to(a), there.to(a))):
            for count in (first, second):
                found += [matched(a, b, distance, count), matched(b, a, distance.transpose(1, 2), count)]
        return found

    return e.cached(("matches", first, second), compute)


class Local(Term):
    """What the terms on matched cells share: how many matches are kept."""

    needs = frozenset({"z", "maps", "boxes"})

    def __init__(self, first: int = 20, second: int = 4) -> None:
        super().__init__()
        self.first, self.second = first, second

    def sets(self, e: Embeddings) -> list[tuple[Tensor, Tensor]]:
        return matches(e, self.first, self.second)


def similarities(
    z: Float[Tensor, "batch dim"], to: Float[Tensor, "entry dim"], temperature: float
) -> Float[Tensor, "batch entry"]:
    """Cosines of every row with every entry, over a temperature."""
    return F.normalize(z, dim=-1) @ F.normalize(to, dim=-1).T / temperature


def to_prototypes(e: Embeddings, temperature: float) -> list[Float[Tensor, "batch prototype"]]:
    """Every view's similarities to the prototypes, computed once for the aligning and the constraining part."""
    prototypes = e.require("prototypes")
    return e.cached(("to_prototypes", temperature), lambda: [similarities(z, prototypes, temperature) for z in e.z])


def to_queue(e: Embeddings, temperature: float) -> list[Float[Tensor, "batch entry"]]:
    """The strong views' similarities to the weak view's queue, likewise."""
    queue = e.require("queue")[-1]
    return e.cached(("to_queue", temperature), lambda: [similarities(z, queue, temperature) for z in e.z[:-1]])


def to_teacher(e: Embeddings, temperature: float) -> dict[tuple[int, int], Float[Tensor, "batch entry"]]:
    """Each view's similarities to the teacher's outputs of each other view, likewise."""
    teacher = e.require("teacher").detach()
    pairs = across(e.z, teacher)
    return e.cached(
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


def assignments(clusters: Clusters, row: Int[Tensor, " batch"]) -> Int[Tensor, "batch kind"]:
    """The entry of each row's cluster among all centres, one per number of clusters."""
    starts = torch.tensor([0, *clusters.counts[:-1]]).cumsum(0)
    return clusters.assigned[:, row].T + to_device(starts, row.device)


def to_clusters(e: Embeddings, clusters: Clusters) -> list[Float[Tensor, "batch entry"]]:
    """Every view's cosines with all centres, each over its concentration; computed once."""
    centres, concentration = clusters.centres.to(e.z), clusters.concentration.to(e.z)
    return e.cached("to_clusters", lambda: [F.normalize(z, dim=-1) @ centres.T / concentration for z in e.z])


def divergence(target: Float[Tensor, "batch entry"], logits: Float[Tensor, "batch entry"]) -> Scalar:
    r"""KL divergence of two softmax distributions, the first held fixed.

    .. math:: \frac{1}{n} \sum_i \sum_j p_{ij} (\log p_{ij} - \log q_{ij})

    >>> float(divergence(torch.zeros(1, 2), torch.zeros(1, 2)))
    0.0
    """
    log_p = target.detach().log_softmax(-1)
    return (log_p.exp() * (log_p - logits.log_softmax(-1))).sum(-1).mean()


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


def unified_of(e: Embeddings, sharpness: float, generated: bool) -> tuple[PerSample, PerSample]:
    """Both log-sum-exps of the views, with generated ones as further views; computed once for both parts."""
    samples = torch.cat((e.z, e.require("generated").detach())) if generated else e.z
    return e.cached(("unified", sharpness, generated), lambda: unified(samples, sharpness))
