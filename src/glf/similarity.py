"""Pairwise quantities that an aligning and a constraining part of one loss share.

Similarities of embeddings to prototypes, a queue, the teacher and cluster centres; the cross-correlation of two views;
MetAug's log-sum-exps; matched cells of feature maps (VICRegL). Where both parts of an objective need the same quantity,
it is computed once per batch (``Embeddings.cached``).
"""

import math

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from glf.device import to_device
from glf.nn.memory import Clusters
from glf.terms import Term, cross_view_pairs, two_views
from glf.types import Embeddings, Scalar


def off_diagonal(matrix: Shaped[Tensor, "*view n n"]) -> Shaped[Tensor, "*view n others"]:
    """The matrix without its diagonal: n - 1 entries per row.

    >>> off_diagonal(torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]])).tolist()
    [[1.0, 2.0], [3.0, 5.0], [6.0, 7.0]]
    """
    n = matrix.shape[-1]
    # Without the first entry, every (n + 1)-th entry is on the diagonal, at the end of a row of n + 1.
    views = matrix.shape[:-2]
    rows = matrix.flatten(-2)[..., 1:].reshape(*views, n - 1, n + 1)[..., :-1]
    return rows.reshape(*views, n, n - 1)


# --- similarities to entries: prototypes, a queue, the teacher's outputs, cluster centres


def similarities(
    z: Float[Tensor, "batch dim"], to: Float[Tensor, "entry dim"], temperature: float
) -> Float[Tensor, "batch entry"]:
    """Cosine of every embedding with every entry, over a temperature."""
    return F.normalize(z, dim=-1) @ F.normalize(to, dim=-1).T / temperature


def similarities_to_prototypes(e: Embeddings, temperature: float) -> list[Float[Tensor, "batch prototype"]]:
    """Similarities of each view to the prototypes."""
    prototypes = e.require("prototypes")
    return e.cached(("to_prototypes", temperature), lambda: [similarities(z, prototypes, temperature) for z in e.z])


def similarities_to_queue(e: Embeddings, temperature: float) -> list[Float[Tensor, "batch entry"]]:
    """Similarities of the strong views to the queue of the weak view, which is the last."""
    queue = e.require("queue")[-1]
    return e.cached(("to_queue", temperature), lambda: [similarities(z, queue, temperature) for z in e.z[:-1]])


def similarities_to_teacher(e: Embeddings, temperature: float) -> dict[tuple[int, int], Float[Tensor, "batch entry"]]:
    """Similarities of each view to the teacher's outputs of each other view, by (view, other view)."""
    teacher = e.require("teacher").detach()
    pairs = cross_view_pairs(e.z, teacher)
    return e.cached(
        ("to_teacher", temperature),
        lambda: {(v, w): similarities(e.z[v], teacher[w], temperature) for v, w in pairs},
    )


def similarities_to_clusters(e: Embeddings, clusters: Clusters) -> list[Float[Tensor, "batch entry"]]:
    """Cosines of each view with all cluster centres, each over the concentration of its cluster."""
    centres, concentration = clusters.centres.to(e.z), clusters.concentration.to(e.z)
    return e.cached("to_clusters", lambda: [F.normalize(z, dim=-1) @ centres.T / concentration for z in e.z])


def own_clusters(clusters: Clusters, indices: Int[Tensor, " batch"]) -> Int[Tensor, "batch kind"]:
    """Position of each image's own cluster among all centres, one per number of clusters."""
    starts = torch.tensor([0, *clusters.counts[:-1]]).cumsum(0)
    return clusters.assigned[:, indices].T + to_device(starts, indices.device)


def expected_similarity(weights: Float[Tensor, "batch entry"], logits: Float[Tensor, "batch entry"]) -> Scalar:
    r"""Negative mean of the logits under fixed weights: a cross-entropy without its log-sum-exp.

    .. math:: -\frac{1}{n} \sum_i \sum_j q_{ij} s_{ij}

    >>> float(expected_similarity(torch.tensor([[0.25, 0.75]]), torch.tensor([[4.0, 8.0]])))
    -7.0
    """
    return -(weights * logits).sum(-1).mean()


def kl_divergence(target: Float[Tensor, "batch entry"], logits: Float[Tensor, "batch entry"]) -> Scalar:
    r"""KL divergence of two softmax distributions, the first without gradient.

    .. math:: \frac{1}{n} \sum_i \sum_j p_{ij} (\log p_{ij} - \log q_{ij})

    >>> float(kl_divergence(torch.zeros(1, 2), torch.zeros(1, 2)))
    0.0
    """
    log_p = target.detach().log_softmax(-1)
    return (log_p.exp() * (log_p - logits.log_softmax(-1))).sum(-1).mean()


# --- cross-correlation of two views (Barlow Twins)


def cross_correlation(z0: Float[Tensor, "batch dim"], z1: Float[Tensor, "batch dim"]) -> Float[Tensor, "dim dim"]:
    r"""Correlation of every dimension of one view with every dimension of the other, for standardised views.

    .. math:: C = \hat z_0^T \hat z_1 / n

    Reference: Zbontar et al. 2021 (Barlow Twins), Eq. 2. Divided by the batch size, never by the dimension.
    """
    return z0.T @ z1 / len(z0)


def correlation_of_views(e: Embeddings, v: int, w: int) -> Float[Tensor, "dim dim"]:
    """Cross-correlation of views v and w."""
    return e.cached(("cross_correlation", v, w), lambda: cross_correlation(e.z[v], e.z[w]))


# --- the log-sum-exps of MetAug


def unified_log_sums(
    z: Float[Tensor, "view batch dim"], sharpness: float
) -> tuple[Float[Tensor, " sample"], Float[Tensor, " sample"]]:
    r"""Log-sum-exp of each sample over the other views of its image (B), and over all other images (A).

    .. math::
        B_a = \log \sum_{p \in P(a)} e^{-\gamma s_{ap}}, \quad A_a = \log \sum_{b \notin P(a) \cup a} e^{\gamma s_{ab}},
        \quad s_{ab} = \frac{1 + \cos(z_a, z_b)}{2}

    Reference: Li et al. 2022 (MetAug), Eq. 8, without margins, as in their published settings. The loss is
    :math:`\frac{1}{m} \sum_a \log(1 + e^{A_a + B_a})`, and :math:`\log(1 + e^x) = x + \log(1 + e^{-x})` splits it: B
    aligns, the rest constrains. With two views it is InfoNCE at a temperature of 2 / sharpness.
    Differs from their code, which has both log-sum-exps per image, over all pairs of its views.
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
    """MetAug's loss: both parts together."""
    attracting, repelling = unified_log_sums(z, sharpness)
    return F.softplus(attracting + repelling).mean()


def unified_log_sums_of(
    e: Embeddings, sharpness: float, generated: bool
) -> tuple[Float[Tensor, " sample"], Float[Tensor, " sample"]]:
    """Both log-sum-exps of z; with ``generated``, the generated features are further views, without gradient."""
    samples = torch.cat((e.z, e.require("generated").detach())) if generated else e.z
    return e.cached(("unified", sharpness, generated), lambda: unified_log_sums(samples, sharpness))


# --- matched cells of two feature maps (VICRegL)

Cells = Float[Tensor, "batch cell local"]


def cell_centres(boxes: Float[Tensor, "batch 4"], cells: int) -> Float[Tensor, "batch {cells} 2"]:
    """Centres of a square feature map's cells in image coordinates, row by row; of a flipped view, from right to left.

    >>> cell_centres(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), 4)[0, 0].tolist()  # the first cell of a flipped view
    [0.75, 0.25]
    """
    side = math.isqrt(cells)
    if side * side != cells:
        raise ValueError(f"a feature map of {cells} cells is not square")
    at = (torch.arange(side, dtype=boxes.dtype, device=boxes.device) + 0.5) / side
    x0, y0, x1, y1 = boxes.unsqueeze(2).unbind(1)
    x, y = torch.lerp(x0, x1, at), torch.lerp(y0, y1, at)
    return torch.stack((x.unsqueeze(1).expand(-1, side, -1), y.unsqueeze(2).expand(-1, -1, side)), 3).flatten(1, 2)


def nearest_cells(
    distance: Float[Tensor, "batch cell candidate"], count: int
) -> tuple[Int[Tensor, "batch match"], Int[Tensor, "batch match"]]:
    """The ``count`` cells with the smallest distance to a candidate, nearest first, and these candidates."""
    least, candidate = distance.min(2)
    cell = least.topk(min(count, least.shape[1]), dim=1, largest=False).indices
    return cell, candidate.gather(1, cell)


def match_cells(
    a: Cells, b: Cells, distance: Float[Tensor, "batch cell candidate"], count: int
) -> tuple[Float[Tensor, "batch match local"], Float[Tensor, "batch match local"]]:
    """The ``count`` cells of a with the nearest cell in b, and these cells of b."""
    cell, candidate = nearest_cells(distance.detach(), count)
    return tuple(x.gather(1, i.unsqueeze(2).expand(-1, -1, x.shape[2])) for x, i in ((a, cell), (b, candidate)))  # type: ignore[return-value]


class MatchedCells(Term):
    """Base class of the terms on matched cells of two views: by feature and by location, as in VICRegL.

    ``first`` and ``second`` are the numbers of matches from either view.
    """

    needs = frozenset({"z", "maps", "boxes"})

    def __init__(self, first: int = 20, second: int = 4) -> None:
        super().__init__()
        self.first, self.second = first, second

    def matches(self, e: Embeddings) -> list[tuple[Tensor, Tensor]]:
        """Eight sets of matched cells: by feature and by location, from either view, with either number of matches.

        VICRegL's code loops over both orders of the two views and keeps ``first`` matches of the first of them.
        """

        def compute() -> list[tuple[Tensor, Tensor]]:
            (a, b), boxes = two_views(e.require("maps"), "VICRegL"), e.require("boxes")
            here, there = cell_centres(boxes[0], a.shape[1]), cell_centres(boxes[1], b.shape[1])
            found = []
            for distance in (torch.cdist(a.detach(), b.detach()), torch.cdist(here.to(a), there.to(a))):
                for count in (self.first, self.second):
                    found += [match_cells(a, b, distance, count), match_cells(b, a, distance.transpose(1, 2), count)]
            return found

        return e.cached(("matches", self.first, self.second), compute)
