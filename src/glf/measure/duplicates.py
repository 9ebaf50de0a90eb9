"""Images that are nearly the same, found block by block: no n x n matrix, and no list of pairs."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn import functional as F

from glf.measure.blocks import blocks


@torch.no_grad()
def near_duplicates(
    rows: Float[Tensor, "image width"], least: float = 0.9
) -> tuple[Int[Tensor, " image"], Float[Tensor, " image"]]:
    """The group of each image, from 1 on, 0 for one that is in none; and its cosine to the most similar image.

    The cosine is of rows from which the mean over all images is taken: features that are never negative, and pixels,
    have a large part in common that says nothing. Two rows whose cosine is ``least`` or more are linked, and a group is
    what hangs together by links: the ends of a long one may be less alike. Every pair of blocks is looked at, so the
    time grows with the square of the images, and the memory does not.

    >>> rows = torch.tensor([[9.0, 5.0], [5.0, 9.0], [9.0, 5.1], [5.1, 9.0], [2.0, 2.0]])
    >>> groups, similarity = near_duplicates(rows, 0.99)
    >>> groups.tolist(), similarity[:2].round(decimals=2).tolist()
    ([1, 2, 1, 2, 0], [1.0, 1.0])
    """
    parent = torch.arange(len(rows)).tolist()
    nearest = torch.full((len(rows),), -torch.inf, dtype=torch.float64)
    centre = torch.stack([part.sum(0) for _, part in blocks(rows)]).sum(0) / len(rows)
    for here, left in _directions(rows, centre):
        for there, right in _directions(rows[: here.stop], centre):  # each pair of blocks once
            similar = left @ right.T
            if here == there:
                similar.fill_diagonal_(-torch.inf)
            for part, best in ((here, similar.amax(1)), (there, similar.amax(0))):
                nearest[part] = torch.maximum(nearest[part], best.cpu())
            for first, second in _links(similar >= least, here.start, there.start):
                _join(parent, first, second)
    roots = np.array([_root(parent, row) for row in range(len(rows))])
    _, inverse, counts = np.unique(roots, return_inverse=True, return_counts=True)
    numbered = (counts > 1).cumsum() * (counts > 1)
    return torch.from_numpy(numbered[inverse]), nearest.to(rows.dtype)


def _directions(rows: Tensor, centre: Tensor) -> Iterator[tuple[slice, Tensor]]:
    return ((where, F.normalize(part - centre, dim=1)) for where, part in blocks(rows))


def _links(linked: Tensor, left: int, right: int) -> list[tuple[int, int]]:
    """What hangs together within a pair of blocks: a link from each member to the first, few however many pairs."""
    rows, columns = linked.nonzero(as_tuple=True)
    if len(rows) == 0:
        return []
    ends = torch.stack([rows + left, columns + right]).cpu().numpy()
    nodes, inverse = np.unique(ends, return_inverse=True)
    first, second = inverse.reshape(ends.shape)
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(len(nodes), len(nodes)))
    _, label = connected_components(graph, directed=False)
    seen: dict[int, int] = {}
    return [(node, seen.setdefault(number, node)) for node, number in zip(nodes.tolist(), label.tolist(), strict=True)]


def _root(parent: list[int], row: int) -> int:
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row


def _join(parent: list[int], first: int, second: int) -> None:
    a, b = _root(parent, first), _root(parent, second)
    parent[max(a, b)] = min(a, b)
