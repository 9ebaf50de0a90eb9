"""Likely outliers: images whose neighbourhood the frozen prior finds flat."""

import torch
from jaxtyping import Float
from torch import Tensor

from glf.constrain.adc import kernels
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.types import Embeddings

DRAWS = 8  # of companions, averaged: which ones an image happened to meet counts less


@torch.no_grad()
def neighbour_entropy(
    rows: Float[Tensor, "image width"],
    *,
    rho: float = 5.0,
    effective_dim: float = 16.0,
    companions: int = 256,
    seed: int = 0,
) -> Float[Tensor, " image"]:
    r"""Entropy of each image's row among random companions, in nats, averaged over draws: high is a likely outlier.

    .. math:: H_i = -\sum_{j \ne i} P_{pre}^i(j) \log P_{pre}^i(j)

    of the prior's Student-t rows, as ADC has them in a batch of ``companions`` + 1 images. The row of an image that is
    like some others is steep, that of an image which is as far from all is flat: its entropy comes near the largest
    that there is, log ``companions``. So it is among companions and not among all images: the number is the one that
    weighs anchors in training, it does not grow with the data, and the memory is that of one batch. In each of the
    draws a permutation is cut into batches, the last of which takes earlier images to be full.

    Foreign images that are many and alike are each other's neighbours, and are not found.

    Reference: Eq. 15 and 17.

    >>> corners = torch.tensor([[0.0], [0.0], [9.0]])  # two of a kind, and one as far from both: log 2
    >>> [round(value, 2) for value in row_entropy(corners).tolist()]
    [0.0, 0.0, 0.69]
    """
    count = len(rows)
    if count < 2 or companions < 1:
        raise ValueError(f"a row is over other images: {count} images and {companions} companions are too few")
    if not rows.isfinite().all():
        bad = int((~rows.isfinite().all(1)).nonzero()[0])
        raise ValueError(f"row {bad} of the prior is not finite: look for the image behind it")
    kernel, size = NeighbourDistributions(rho=rho, prior_effective_dim=effective_dim), min(companions + 1, count)
    generator = torch.Generator().manual_seed(seed)
    total, seen = rows.new_zeros(count), rows.new_zeros(count)
    for _ in range(1 if size == count else DRAWS):
        order = torch.randperm(count, generator=generator).to(rows.device)
        for start in range(0, count, size):
            batch = order[min(start, count - size) :][:size]
            log_rows = kernel.pre(Embeddings(z=rows.new_zeros(1, size, 1), prior=rows[batch]))
            total[batch] += kernels.entropy(log_rows)
            seen[batch] += 1
    return total / seen
