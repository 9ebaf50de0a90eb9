"""Outlier score of images: entropy of their neighbour distribution under the prior."""

import torch
from jaxtyping import Float
from torch import Tensor

from glf.config.adc import AdcOptions
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.device import to_device
from glf.types import Embeddings

DRAWS = 8  # random batches per image to average over, so that the choice of companions matters less


@torch.no_grad()
def neighbour_entropy(
    features: Float[Tensor, "image width"],
    *,
    rho: float = AdcOptions.rho,
    effective_dim: float = AdcOptions.prior_effective_dim,
    companions: int = 256,
    seed: int = 0,
) -> Float[Tensor, " image"]:
    r"""Entropy of each image's neighbour distribution among random companions, in nats: high for likely outliers.

    .. math:: H_i = -\sum_{j \ne i} P_{pre}^i(j) \log P_{pre}^i(j)

    The distribution is the prior's, as ADC computes it in a batch of ``companions`` + 1 images. It is peaked for an
    image that is similar to a few others. For an image that is about equally far from all others it is nearly uniform,
    with an entropy near the maximum, log ``companions``. Random batches instead of all images have three advantages:
    the entropy is the one that weights anchors in training, it does not depend on the size of the data set, and it
    needs the memory of one batch. Each draw cuts a random permutation into batches; the last batch is filled up with
    earlier images. The result is the mean over draws.

    Foreign images that are many and similar to each other are each other's neighbours, and are not found.

    Reference: Eq. 15 and 17.

    >>> features = torch.tensor([[0.0], [0.0], [9.0]])  # two equal images, and one equally far from both: log 2
    >>> [round(value, 2) for value in neighbour_entropy(features).tolist()]
    [0.0, 0.0, 0.69]
    """
    count = len(features)
    if count < 2 or companions < 1:
        raise ValueError(f"{count} images with {companions} companions are too few: an outlier score compares images")
    if not features.isfinite().all():
        bad = int((~features.isfinite().all(1)).nonzero()[0])
        raise ValueError(f"feature vector {bad} of the prior is not finite: check this image")
    neighbours = NeighbourDistributions(rho=rho, prior_effective_dim=effective_dim)
    size = min(companions + 1, count)
    generator = torch.Generator().manual_seed(seed)
    total, seen = features.new_zeros(count), features.new_zeros(count)
    for _ in range(1 if size == count else DRAWS):
        order = to_device(torch.randperm(count, generator=generator), features.device)
        for start in range(0, count, size):
            batch = order[min(start, count - size) :][:size]
            log_pre = neighbours.log_pre(Embeddings(z=features.new_zeros(1, size, 1), prior=features[batch]))
            total[batch] += entropy(log_pre)
            seen[batch] += 1
    return total / seen
