"""Rows in double precision, a block at a time: no copy of all features is ever made."""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

ROWS = 2048  # a pair of blocks has 32 MB of similarities


def blocks(features: Float[Tensor, "sample dim"]) -> Iterator[tuple[slice, Float[Tensor, "row dim"]]]:
    """Which rows, and those rows in float64; in order.

    >>> import torch
    >>> [(rows.start, len(part)) for rows, part in blocks(torch.zeros(5000, 2))]
    [(0, 2048), (2048, 2048), (4096, 904)]
    """
    for start in range(0, len(features), ROWS):
        part = features[start : start + ROWS].double()
        if not part.isfinite().all():
            bad = int((~part.isfinite().all(1)).nonzero()[0]) + start
            raise ValueError(f"row {bad} of the features is not finite: look for the image or the weights behind it")
        yield slice(start, start + len(part)), part


def unit_blocks(features: Float[Tensor, "sample dim"]) -> Iterator[tuple[slice, Float[Tensor, "row dim"]]]:
    """The same, each row divided by its length; a row of zeros stays one."""
    return ((rows, F.normalize(part, dim=1)) for rows, part in blocks(features))
