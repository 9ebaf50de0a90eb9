"""Nearest-neighbour classification, block by block: memory grows neither with the queries nor with the bank."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

ENTRIES = 2**26  # similarities held at a time: 256 MB, and enough queries for a product at full speed
BANK = 2**16  # rows of the bank looked at together: a million memory-mapped features are read, never held


def nearest_neighbours(
    bank: Float[Tensor, "bank dim"],
    labels: Int[Tensor, " bank"],
    queries: Float[Tensor, "query dim"],
    k: int = 5,
) -> Int[Tensor, " query"]:
    """Majority among the k nearest in Euclidean distance; a tie goes to the smallest label, as in scikit-learn.

    Reference: the paper's 5-nn; Ermolov et al. 2021.

    >>> bank, labels = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 0, 1])
    >>> nearest_neighbours(bank, labels, torch.tensor([[0.4], [4.0]]), k=1).tolist()
    [0, 1]
    """
    centre = bank.mean(0)  # of a cloud far from the origin, squares would lose the digits that tell neighbours apart

    def nearness(part: Tensor, rows: Tensor) -> Tensor:
        # The query's own square is the same for every neighbour: it cannot change their order.
        rows = rows - centre
        return torch.addmm(rows.pow(2).sum(1), part - centre, rows.T, alpha=2, beta=-1)

    return _voted(nearness, torch.ones_like, bank, labels, queries, k)


def weighted_neighbours(
    bank: Float[Tensor, "bank dim"],
    labels: Int[Tensor, " bank"],
    queries: Float[Tensor, "query dim"],
    k: int = 20,
    temperature: float = 0.07,
) -> Int[Tensor, " query"]:
    r"""Votes of the k most similar by cosine, each weighing :math:`\exp(\cos / \tau)`.

    Reference: Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination.
    """

    def weight(similarity: Tensor) -> Tensor:
        # Relative to the nearest: the same winner, and no overflow at small temperatures.
        return ((similarity - similarity.amax(1, keepdim=True)) / temperature).exp()

    return _voted(_cosine, weight, bank, labels, queries, k)


def most_similar(
    bank: Float[Tensor, "bank dim"], queries: Float[Tensor, "query dim"], k: int
) -> tuple[Float[Tensor, "query k"], Int[Tensor, "query k"]]:
    """Cosines and rows of the k most similar, the nearest first.

    >>> bank = torch.tensor([[0.0, 2.0], [1.0, 0.0], [1.0, 1.0]])
    >>> most_similar(bank, torch.tensor([[3.0, 0.0]]), k=2)[1].tolist()
    [[1, 2]]
    """
    return _nearest(_cosine, queries, bank, k)


def _cosine(part: Tensor, rows: Tensor) -> Tensor:
    return F.normalize(part, dim=1) @ F.normalize(rows, dim=1).T


def _voted(
    nearness: Callable[[Tensor, Tensor], Tensor],
    weight: Callable[[Tensor], Tensor],
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    k: int,
) -> Tensor:
    """The class with most votes among each query's k nearest."""
    if k > len(bank):
        raise ValueError(f"{k} neighbours of {len(bank)} images: there are too few")
    classes = int(labels.max()) + 1
    chunk = max(1, ENTRIES // max(min(len(bank), BANK), classes))
    winners = []
    for part in torch.split(queries, chunk):
        near, which = _nearest(nearness, part, bank, k)
        votes = near.new_zeros(len(part), classes).scatter_add_(1, labels[which], weight(near))
        winners.append(votes.argmax(1))
    return torch.cat(winners)


def _nearest(nearness: Callable[[Tensor, Tensor], Tensor], part: Tensor, bank: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Nearness and rows of the k nearest: those of each block of the bank, and the best among them."""
    best, which = part.new_empty(len(part), 0), torch.empty(len(part), 0, dtype=torch.long, device=part.device)
    for start in range(0, len(bank), BANK):
        rows = bank[start : start + BANK]
        near, found = nearness(part, rows).topk(min(k, len(rows)), dim=1)
        best, which = torch.cat([best, near], 1), torch.cat([which, found + start], 1)
    kept = best.topk(k, dim=1)
    return kept.values, which.gather(1, kept.indices)
