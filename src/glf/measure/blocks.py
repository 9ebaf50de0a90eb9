"""Features in double precision, block by block, so that a double-precision copy of all features is never made."""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


class TooFewError(ValueError):
    """These images, or their classes, are too few for a measure."""


BLOCK_SIZE = 2048  # the similarities of two blocks take 32 MB


def blocks(features: Float[Tensor, "sample dim"]) -> Iterator[tuple[slice, Float[Tensor, "block dim"]]]:
    """Each block's slice and its features in float64, in order.

    >>> import torch
    >>> [(where.start, len(part)) for where, part in blocks(torch.zeros(5000, 2))]
    [(0, 2048), (2048, 2048), (4096, 904)]
    """
    for start in range(0, len(features), BLOCK_SIZE):
        part = features[start : start + BLOCK_SIZE].double()
        if not part.isfinite().all():
            bad = int((~part.isfinite().all(1)).nonzero()[0]) + start
            raise ValueError(f"feature vector {bad} is not finite: check this image and the weights of the network")
        yield slice(start, start + len(part)), part


def unit_blocks(features: Float[Tensor, "sample dim"]) -> Iterator[tuple[slice, Float[Tensor, "block dim"]]]:
    """The same with each feature vector at unit length; zero vectors stay zero."""
    return ((where, F.normalize(part, dim=1)) for where, part in blocks(features))
