"""Local features of two views, matched by where they lie in the image or by how alike they are (VICRegL)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glf.align.distance import mse
from glf.terms import Term, mean, two
from glf.types import Embeddings, Scalar

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


def nearest(
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
    cell, candidate = nearest(distance.detach(), count)
    return tuple(x.gather(1, i.unsqueeze(2).expand(-1, -1, x.shape[2])) for x, i in ((a, cell), (b, candidate)))  # type: ignore[return-value]


def matches(e: Embeddings, first: int, second: int) -> list[tuple[Tensor, Tensor]]:
    """Eight sets of matched cells: by feature and by location, from either view, with either number of matches.

    VICRegL's code goes over both orders of the two views, and keeps ``first`` matches of the one that comes first.
    """

    def compute() -> list[tuple[Tensor, Tensor]]:
        (a, b), boxes = two(e.asked("maps"), "VICRegL"), e.asked("boxes")
        here, there = locations(boxes[0], a.shape[1]), locations(boxes[1], b.shape[1])
        found = []
        for distance in (torch.cdist(a.detach(), b.detach()), torch.cdist(here.to(a), there.to(a))):
            for count in (first, second):
                found += [matched(a, b, distance, count), matched(b, a, distance.transpose(1, 2), count)]
        return found

    return e.once(("matches", first, second), compute)


class Local(Term):
    """What the terms on matched cells share: how many matches are kept."""

    needs = frozenset({"z", "maps", "boxes"})

    def __init__(self, first: int = 20, second: int = 4) -> None:
        super().__init__()
        self.first, self.second = first, second

    def sets(self, e: Embeddings) -> list[tuple[Tensor, Tensor]]:
        return matches(e, self.first, self.second)


class LocalMSE(Local):
    """Matched cells agree: twice the mean over the sets, the sum over both ways of matching.

    Reference: Bardes et al. 2022 (VICRegL), Eq. 3 to 5. lightly's loss is the same; the authors' code overwrites the
    sum in its loop over pairs of views.
    """

    name, role, formula = "local_mse", "align", "|map_i - map'_match(i)|^2 / d"

    def forward(self, e: Embeddings) -> Scalar:
        return 2 * mean(mse(a.flatten(0, 1), b.flatten(0, 1)) for a, b in self.sets(e))
