"""Geometry of labelled features: compactness and separability of classes.

All measures use unit features, so lengths do not matter. They describe the given sample: a class mean is the mean of
the given features. A class with a single sample is its own mean and adds no distance, and with m samples per class the
variance is (m - 1)/m of the population's. So compare samples of equal size only.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glf.measure.blocks import TooFewError, blocks, unit_blocks


def class_means(
    features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]
) -> tuple[Float[Tensor, "class dim"], Int[Tensor, " sample"], Int[Tensor, " class"]]:
    """Mean unit feature of each class that occurs, each sample's position among these classes, and their sizes.

    >>> means, position, size = class_means(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([7, 7, 9]))
    >>> means.tolist(), position.tolist(), size.tolist()
    ([[0.5, 0.5], [1.0, 0.0]], [0, 0, 1], [2, 1])
    """
    if len(labels) == 0:
        raise ValueError("no features: there is nothing to measure")
    if (labels < 0).any():
        count = int((labels < 0).sum())
        raise ValueError(f"{count} of {len(labels)} samples have no label (a negative one): leave them out")
    _, position, size = torch.unique(labels, return_inverse=True, return_counts=True)
    total = features.new_zeros(len(size), features.shape[1], dtype=torch.float64)
    for where, part in unit_blocks(features):
        total.index_add_(0, position[where], part)
    return total / size.unsqueeze(1), position, size


def compactness(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Mean distance of unit features to their class mean: 0 is one point per class, 1 the maximum.

    .. math:: \frac{1}{n} \sum_i |u_i - \mu_{y_i}|, \quad u_i = \frac{f_i}{|f_i|}, \quad
        \mu_k = \frac{1}{n_k} \sum_{i: y_i = k} u_i

    Smaller is more compact. Classes count in proportion to their sizes; one class is enough.

    Reference: the paper's intra-class compactness, which it does not define; this definition is ours.

    >>> compactness(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 0, 1, 1]))
    0.5
    """
    return float(_squared_distances_to_mean(features, labels).sqrt().mean())


def within_variance(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Variance of unit features about their class means, between 0 and 1.

    .. math:: \mathrm{Var}(f(x) \mid y) = \mathbb{E}_y \mathbb{E}_{x \mid y} |f(x) - \mu_y|^2

    Reference: the paper's Theorem 1; Wang et al. 2022. Classes count in proportion to their sizes.

    >>> within_variance(torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]), torch.tensor([0, 0, 1]))  # 1/2, 1/2 and 0
    0.3333333333333333
    """
    return float(_squared_distances_to_mean(features, labels).mean())


def separability(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Mean distance between two class means of unit features, between 0 and 2.

    .. math:: \frac{2}{K(K-1)} \sum_{k < l} |\mu_k - \mu_l|

    Every pair of classes counts equally. The measure does not depend on the features' lengths, but it depends on how
    much of the sphere they use: a cloud in a small part of it has a low value however well its classes are separated.
    `between_share` depends on neither.

    Reference: the paper's inter-class separability, which it does not define; this definition is ours.

    >>> separability(torch.tensor([[1.0, 0.0], [-2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1, 0]))
    2.0
    """
    means, _, size = class_means(features, labels)
    classes = len(size)
    if classes < 2:
        raise TooFewError(f"all {len(labels)} samples are of one class: separability needs at least two")
    # Differences, not matrix products: those would lose the digits of classes that are close.
    exact = "donot_use_mm_for_euclid_dist"
    total = sum(torch.cdist(part, means, compute_mode=exact).sum() for _, part in blocks(means))
    return float(total) / (classes * (classes - 1))


def between_share(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Share of the unit features' variance between classes: 1 is one point per class, 0 is equal class means.

    .. math:: \frac{B}{B + W}, \quad B = \sum_k \frac{n_k}{n} |\mu_k - \mu|^2, \quad W = \mathrm{Var}(f(x) \mid y)

    The ratio of between-class to within-class scatter, B/W, as a share, which stays finite. It does not depend on the
    size of the cloud of unit features. Features that are all equal have 0. Labels that are independent of the features
    have about (K - 1)/(n - 1), not 0.

    >>> between_share(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]), torch.tensor([0, 0, 1, 1]))
    0.5
    """
    means, _, size = class_means(features, labels)
    share = size.double() / len(labels)
    between = float((share * (means - share @ means).pow(2).sum(1)).sum())
    total = between + within_variance(features, labels)
    return between / total if total > 1e-12 else 0.0


def similarity_histograms(
    features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"], bins: int = 40
) -> tuple[Float[Tensor, " bin"], Float[Tensor, " bin"]]:
    """Histograms of cosines, as shares of pairs per bin from -1 to 1: pairs of one class, and of different classes.

    >>> features, labels = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
    >>> same, other = similarity_histograms(features, labels, bins=3)
    >>> same.tolist(), other.tolist()
    ([0.0, 0.0, 1.0], [0.0, 1.0, 0.0])
    """
    count = torch.zeros(2, bins, dtype=torch.float64)
    for here, left in unit_blocks(features):
        for there, right in unit_blocks(features[here.start :]):
            cosine = (left @ right.T).cpu()
            alike = (labels[here].unsqueeze(1) == labels[here.start :][there]).cpu()
            pairs = torch.ones_like(alike).triu(1) if there.start == 0 else torch.ones_like(alike)
            for kind, chosen in enumerate((alike & pairs, ~alike & pairs)):
                # A cosine of 0 belongs to the bin above it: rounding must not move orthogonal pairs to either side.
                position = ((cosine[chosen] + 1 + 1e-9) * bins / 2).long().clamp_(0, bins - 1)
                count[kind] += torch.bincount(position, minlength=bins)
    same, other = count / count.sum(1, keepdim=True).clamp_min(1)
    return same, other


def _squared_distances_to_mean(features: Tensor, labels: Tensor) -> Float[Tensor, " sample"]:
    means, position, _ = class_means(features, labels)
    return torch.cat([(part - means[position[where]]).pow(2).sum(1) for where, part in unit_blocks(features)])
