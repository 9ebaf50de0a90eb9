"""Near-duplicate images, found block by block: without an n x n matrix and without a list of pairs."""

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
    features: Float[Tensor, "image width"], threshold: float = 0.9
) -> tuple[Int[Tensor, " image"], Float[Tensor, " image"]]:
    """Group of each image (1, 2, ...; 0 for images without duplicates), and its cosine to the most similar image.

    Cosines are computed after subtracting the mean over all images, because non-negative features and pixels have a
    large common part without information. Two images are linked if their cosine is at least ``threshold``, and a group
    is a connected component: the ends of a long chain may be less similar. All pairs of blocks are compared, so the
    time grows with the square of the number of images, and the memory does not.

    >>> features = torch.tensor([[9.0, 5.0], [5.0, 9.0], [9.0, 5.1], [5.1, 9.0], [2.0, 2.0]])
    >>> groups, similarity = near_duplicates(features, 0.99)
    >>> groups.tolist(), similarity[:2].round(decimals=2).tolist()
    ([1, 2, 1, 2, 0], [1.0, 1.0])
    """
    parent = torch.arange(len(features)).tolist()
    largest = torch.full((len(features),), -torch.inf, dtype=torch.float64)
    centre = torch.stack([part.sum(0) for _, part in blocks(features)]).sum(0) / len(features)
    for here, left in _directions(features, centre):
        for there, right in _directions(features[: here.stop], centre):  # each pair of blocks once
            similar = left @ right.T
            if here == there:
                similar.fill_diagonal_(-torch.inf)
            for part, best in ((here, similar.amax(1)), (there, similar.amax(0))):
                largest[part] = torch.maximum(largest[part], best.cpu())
            for first, second in _links(similar >= threshold, here.start, there.start):
                _join(parent, first, second)
    roots = np.array([_root(parent, image) for image in range(len(features))])
    _, inverse, counts = np.unique(roots, return_inverse=True, return_counts=True)
    numbered = (counts > 1).cumsum() * (counts > 1)
    return torch.from_numpy(numbered[inverse]), largest.to(features.dtype)


def _directions(features: Tensor, centre: Tensor) -> Iterator[tuple[slice, Tensor]]:
    return ((where, F.normalize(part - centre, dim=1)) for where, part in blocks(features))


def _links(linked: Tensor, left: int, right: int) -> list[tuple[int, int]]:
    """Links within a pair of blocks: from each image to the first of its connected component, however many pairs."""
    first, second = linked.nonzero(as_tuple=True)
    if len(first) == 0:
        return []
    ends = torch.stack([first + left, second + right]).cpu().numpy()
    nodes, inverse = np.unique(ends, return_inverse=True)
    start, end = inverse.reshape(ends.shape)
    graph = coo_array((np.ones(len(start)), (start, end)), shape=(len(nodes), len(nodes)))
    _, label = connected_components(graph, directed=False)
    seen: dict[int, int] = {}
    return [(node, seen.setdefault(number, node)) for node, number in zip(nodes.tolist(), label.tolist(), strict=True)]


def _root(parent: list[int], image: int) -> int:
    while parent[image] != image:
        parent[image] = parent[parent[image]]
        image = parent[image]
    return image


def _join(parent: list[int], first: int, second: int) -> None:
    a, b = _root(parent, first), _root(parent, second)
    parent[max(a, b)] = min(a, b)
