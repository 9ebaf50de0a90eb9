"""Points of their own for DCM's target: embeddings of the unaugmented images, and centres of their neighbourhoods.

What the paper says of the calibrated distribution allows five readings (``--target``):

- ``own``: Eq. 11 of the view itself. Target and ``dat`` then come from the same distances, and no other order of the
  neighbours is ever asked for.
- ``clean``: Eq. 11 is over the mini-batch, not over its augmented views: Gaussian distributions of the embeddings u of
  the unaugmented images, with a bandwidth per anchor.
- ``memory``: the density is that of "the entire training set": the same over the last embeddings of several thousand
  images.
- ``centre``: "samples from the same class would share a common anchor": u is moved half-way to the mean of its
  neighbours before distances are computed.
- ``prior``: ``own``, multiplied by the prior's distribution to a power: sharper only where the prior agrees.

None of them has a gradient.
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.constrain.adc.blockwise import Rows, StudentKernel, block_entries, blocks
from glf.constrain.adc.kernels import NO_NEIGHBOUR, bandwidths, distances_between, log_gaussian

_GAUSSIAN = StudentKernel(exponent=1.0, slope=1.0)  # only the Gaussian of the same distances is used


@torch.no_grad()
def clean_target(u: Float[Tensor, "sample dim"], perplexity: float, *, centre: bool = False) -> Rows:
    """The target ``clean`` or ``centre``, of unit embeddings u of the unaugmented images."""
    rows = Rows(u, _GAUSSIAN, bandwidths_in_batch(u, log_gaussian, perplexity))
    if not centre:
        return rows
    c = centres(rows)
    return Rows(c, _GAUSSIAN, bandwidths_in_batch(c, log_gaussian, perplexity))


def centres(rows: Rows) -> Float[Tensor, "sample dim"]:
    r"""Each sample, moved half-way to the mean of its neighbours, as a unit vector.

    .. math:: c_i \propto \tfrac{1}{2} u_i + \tfrac{1}{2} \sum_{j \ne i} p_i(j) u_j

    >>> centres(Rows(torch.eye(2), _GAUSSIAN, torch.ones(2)))  # each has one neighbour
    tensor([[0.7071, 0.7071],
            [0.7071, 0.7071]])
    """
    u, bandwidth = rows.points, rows.bandwidth
    assert bandwidth is not None
    found = []
    for block, distances in _distances_to_others(u):
        p = log_gaussian(bandwidth[block].unsqueeze(1) * distances).softmax(-1)
        found.append(F.normalize(u[block] + p @ u, dim=-1))
    return torch.cat(found)


@torch.no_grad()
def bandwidths_in_batch(
    points: Float[Tensor, "sample dim"], log_kernel: Callable[[Tensor], Tensor], perplexity: float
) -> Float[Tensor, " sample"]:
    """Bandwidth of each sample's distribution over the others that gives it this perplexity."""
    return torch.cat([bandwidths(near, log_kernel, perplexity) for _, near in _distances_to_others(points)])


def _distances_to_others(points: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of anchors with their squared distances to all samples, of which the anchor itself does not count."""
    for block in blocks(len(points), max(1, block_entries(points) // len(points))):
        distances = distances_between(points[block], points)
        distances.diagonal(block.start).fill_(NO_NEIGHBOUR)
        yield block, distances
