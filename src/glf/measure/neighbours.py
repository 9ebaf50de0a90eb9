"""Nearest-neighbour classification, in chunks: memory grows with the bank, not with bank times queries."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

ENTRIES = 2**26  # similarities held at a time: 256 MB, and enough queries for a product at full speed


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
    bank, queries = bank - centre, queries - centre
    square = bank.pow(2).sum(1)

    def votes(part: Tensor) -> Tensor:
        # The query's own square is the same for every neighbour: it cannot change their order.
        near = torch.addmm(square, part, bank.T, alpha=-2).topk(k, dim=1, largest=False).indices
        return _counted(labels[near], torch.ones_like(part[:, :1]).expand(-1, k), classes)

    classes = int(labels.max()) + 1
    return _in_chunks(votes, _checked(bank, queries, k), max(len(bank), classes))


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
    unit = F.normalize(bank, dim=1)

    def votes(part: Tensor) -> Tensor:
        similarity, near = (part @ unit.T).topk(k, dim=1)
        # Relative to the nearest: the same winner, and no overflow at small temperatures.
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        return _counted(labels[near], weight, classes)

    classes = int(labels.max()) + 1
    return _in_chunks(votes, F.normalize(_checked(bank, queries, k), dim=1), max(len(bank), classes))


def _checked(bank: Tensor, queries: Tensor, k: int) -> Tensor:
    if k > len(bank):
        raise ValueError(f"{k} neighbours of {len(bank)} images: there are too few")
    return queries


def _counted(labels: Tensor, weight: Tensor, classes: int) -> Tensor:
    """Votes for each class."""
    return weight.new_zeros(len(labels), classes).scatter_add_(1, labels, weight)


def _in_chunks(votes: Callable[[Tensor], Tensor], queries: Tensor, width: int) -> Tensor:
    chunk = max(1, ENTRIES // width)
    return torch.cat([votes(queries[i : i + chunk]).argmax(1) for i in range(0, len(queries), chunk)])
