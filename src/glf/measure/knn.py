"""k-nearest-neighbour classification and search, block by block: memory depends neither on queries nor on the bank."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.config.evaluation import KNN_K, KNN_TEMPERATURE, PAPER_KNN_K
from glf.measure.blocks import TooFewError

MAX_SIMILARITIES = 2**26  # in memory at a time: 256 MB, and enough queries for a fast matrix product
BANK_BLOCK = 2**16  # features of the bank compared at a time, so that a memory-mapped bank is never read as a whole
NEIGHBOURS = 10  # k of the share of neighbours that an adaptation keeps


def knn_predict(
    bank: Float[Tensor, "bank dim"],
    labels: Int[Tensor, " bank"],
    queries: Float[Tensor, "query dim"],
    k: int = PAPER_KNN_K,
) -> Int[Tensor, " query"]:
    """Predict labels by majority among the k nearest in Euclidean distance; ties go to the smallest label.

    Reference: the paper's k-NN (k = 5); Ermolov et al. 2021. Ties as in scikit-learn.

    >>> bank, labels = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 0, 1])
    >>> knn_predict(bank, labels, torch.tensor([[0.4], [4.0]]), k=1).tolist()
    [0, 1]
    """
    centre = bank.mean(0)  # far from the origin, squares would lose the digits that separate neighbours

    def nearness(part: Tensor, block: Tensor) -> Tensor:
        # The square of the query is the same for all neighbours and does not change their order.
        centred = block - centre
        return torch.addmm(centred.pow(2).sum(1), part - centre, centred.T, alpha=2, beta=-1)

    return _voted(nearness, torch.ones_like, bank, labels, queries, k)


def weighted_knn_predict(
    bank: Float[Tensor, "bank dim"],
    labels: Int[Tensor, " bank"],
    queries: Float[Tensor, "query dim"],
    k: int = KNN_K,
    temperature: float = KNN_TEMPERATURE,
) -> Int[Tensor, " query"]:
    r"""Predict labels by the votes of the k most similar by cosine, each with weight :math:`\exp(\cos / \tau)`.

    Reference: Wu et al. 2018, Unsupervised Feature Learning via Non-Parametric Instance Discrimination.
    """

    def weight(similarity: Tensor) -> Tensor:
        # Relative to the nearest: the same winner, without overflow at small temperatures.
        return ((similarity - similarity.amax(1, keepdim=True)) / temperature).exp()

    return _voted(_cosine, weight, bank, labels, queries, k)


def most_similar(
    bank: Float[Tensor, "bank dim"], queries: Float[Tensor, "query dim"], k: int
) -> tuple[Float[Tensor, "query k"], Int[Tensor, "query k"]]:
    """Cosines and indices of the k most similar features of the bank, most similar first.

    >>> bank = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    >>> similarity, indices = most_similar(bank, torch.tensor([[0.0, 5.0]]), k=2)
    >>> indices.tolist(), [round(value, 3) for value in similarity[0].tolist()]
    ([[1, 2]], [1.0, 0.8])
    """
    if not 1 <= k <= len(bank):
        raise ValueError(f"cannot find the {k} most similar of {len(bank)} images: k must be between 1 and {len(bank)}")
    chunk = max(1, MAX_SIMILARITIES // min(len(bank), BANK_BLOCK))
    found = [_nearest(_cosine, part, bank, k) for part in torch.split(queries, chunk)]
    return torch.cat([near for near, _ in found]), torch.cat([indices for _, indices in found])


def _cosine(part: Tensor, block: Tensor) -> Tensor:
    return F.normalize(part, dim=1) @ F.normalize(block, dim=1).T


def _voted(
    nearness: Callable[[Tensor, Tensor], Tensor],
    weight: Callable[[Tensor], Tensor],
    bank: Tensor,
    labels: Tensor,
    queries: Tensor,
    k: int,
) -> Tensor:
    """The class with the most votes among the k nearest of each query."""
    if k > len(bank):
        raise TooFewError(f"{k} neighbours of {len(bank)} images: lower k to at most {len(bank)}")
    classes = int(labels.max()) + 1
    chunk = max(1, MAX_SIMILARITIES // max(min(len(bank), BANK_BLOCK), classes))
    winners = []
    for part in torch.split(queries, chunk):
        near, indices = _nearest(nearness, part, bank, k)
        votes = near.new_zeros(len(part), classes).scatter_add_(1, labels[indices], weight(near))
        winners.append(votes.argmax(1))
    return torch.cat(winners)


def _nearest(nearness: Callable[[Tensor, Tensor], Tensor], part: Tensor, bank: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Nearness and indices of the k nearest: the best of the k nearest of each block of the bank."""
    best, indices = part.new_empty(len(part), 0), torch.empty(len(part), 0, dtype=torch.long, device=part.device)
    for start in range(0, len(bank), BANK_BLOCK):
        block = bank[start : start + BANK_BLOCK]
        near, found = nearness(part, block).topk(min(k, len(block)), dim=1)
        best, indices = torch.cat([best, near], 1), torch.cat([indices, found + start], 1)
    kept = best.topk(k, dim=1)
    return kept.values, indices.gather(1, kept.indices)


def neighbours_kept(
    before: Float[Tensor, "sample dim"], after: Float[Tensor, "sample other"], k: int = NEIGHBOURS
) -> Float[Tensor, " sample"]:
    """Share of each sample's k nearest neighbours by cosine that are still among its k nearest afterwards.

    >>> line = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> neighbours_kept(line, line, k=1).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    k = min(k, len(before) - 1)
    if k < 1:
        raise TooFewError("neighbours need at least two images")
    old, new = (_others(features, k) for features in (before, after))
    return (old.unsqueeze(2) == new.unsqueeze(1)).any(2).double().mean(1).to(before.dtype)


def _others(features: Float[Tensor, "sample dim"], k: int) -> Int[Tensor, "sample k"]:
    """The k nearest of each sample without itself, which need not come first among duplicates."""
    found = most_similar(features, features, k + 1)[1]
    itself = found == torch.arange(len(found), device=found.device).unsqueeze(1)
    itself[~itself.any(1), -1] = True  # lost among more than k duplicates: drop the last one
    return found[~itself].view(len(found), k)
