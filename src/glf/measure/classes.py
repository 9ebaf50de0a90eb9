"""The shape of labelled features: how compact classes are, and how far apart.

All of it is about unit features, so lengths do not count, and about the sample as it is: a class mean is the mean of
the rows that are given. A class of one row is its own mean and adds no distance to it, and with m rows per class the
variance is (m - 1)/m of the population's: compare samples of one size.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from glf.measure.blocks import blocks, unit_blocks


def class_means(
    features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]
) -> tuple[Float[Tensor, "class dim"], Int[Tensor, " sample"], Int[Tensor, " class"]]:
    """Mean unit feature of every class that occurs, each row's place among them, and how many rows each has.

    >>> means, place, count = class_means(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([7, 7, 9]))
    >>> means.tolist(), place.tolist(), count.tolist()
    ([[0.5, 0.5], [1.0, 0.0]], [0, 0, 1], [2, 1])
    """
    if len(labels) == 0:
        raise ValueError("no features: there is nothing to measure")
    if (labels < 0).any():
        count = int((labels < 0).sum())
        raise ValueError(f"{count} of {len(labels)} rows have no label (a negative one): leave those rows out")
    _, place, count = torch.unique(labels, return_inverse=True, return_counts=True)
    total = features.new_zeros(len(count), features.shape[1], dtype=torch.float64)
    for rows, part in unit_blocks(features):
        total.index_add_(0, place[rows], part)
    return total / count.unsqueeze(1), place, count


def compactness(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Mean distance of unit features to the mean of their class: 0 is one point per class, 1 the most there can be.

    .. math:: \frac{1}{n} \sum_i |u_i - \mu_{y_i}|, \quad u_i = \frac{f_i}{|f_i|}, \quad
        \mu_k = \frac{1}{n_k} \sum_{i: y_i = k} u_i

    The smaller, the more compact. Large classes count as often as they have samples; one class is enough.

    Reference: the paper's intra-class compactness, which it does not define; this is ours.

    >>> compactness(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 0, 1, 1]))
    0.5
    """
    return float(_squared_distances_to_mean(features, labels).sqrt().mean())


def within_variance(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Variance of unit features about the mean of their class, between 0 and 1.

    .. math:: \mathrm{Var}(f(x) \mid y) = \mathbb{E}_y \mathbb{E}_{x \mid y} |f(x) - \mu_y|^2

    Reference: the paper's Theorem 1; Wang et al. 2022. Classes weigh as much as they occur.

    >>> within_variance(torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]), torch.tensor([0, 0, 1]))  # 1/2, 1/2 and 0
    0.3333333333333333
    """
    return float(_squared_distances_to_mean(features, labels).mean())


def separability(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Mean distance between the means of two classes of unit features, between 0 and 2.

    .. math:: \frac{2}{K(K-1)} \sum_{k < l} |\mu_k - \mu_l|

    Every pair of classes counts alike. It is free of the features' lengths, not of how much of the sphere they use: a
    cloud in a corner of it has a small one however well its classes are told apart; `between_share` is free of both.

    Reference: the paper's inter-class separability, which it does not define; this is ours.

    >>> separability(torch.tensor([[1.0, 0.0], [-2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1, 0]))
    2.0
    """
    means, _, count = class_means(features, labels)
    classes = len(count)
    if classes < 2:
        raise ValueError(f"all {len(labels)} samples are of one class: separability needs at least two")
    # No products here: they would lose the digits of classes that are close.
    exact = "donot_use_mm_for_euclid_dist"
    total = sum(torch.cdist(part, means, compute_mode=exact).sum() for _, part in blocks(means))
    return float(total) / (classes * (classes - 1))


def between_share(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Share of the unit features' variance that is between classes: 1 is one point per class, 0 is equal means.

    .. math:: \frac{B}{B + W}, \quad B = \sum_k \frac{n_k}{n} |\mu_k - \mu|^2, \quad W = \mathrm{Var}(f(x) \mid y)

    The ratio of between- to within-class scatter, B/W, as a share, which stays finite. It is free of the size of the
    cloud that unit features make. One point in all has 0. Labels that say nothing about the features have about
    (K - 1)/(n - 1), not 0.

    >>> between_share(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]), torch.tensor([0, 0, 1, 1]))
    0.5
    """
    means, _, count = class_means(features, labels)
    share = count.double() / len(labels)
    between = float((share * (means - share @ means).pow(2).sum(1)).sum())
    total = between + within_variance(features, labels)
    return between / total if total > 1e-12 else 0.0


def similarities(
    features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"], bins: int = 40
) -> tuple[Float[Tensor, " bin"], Float[Tensor, " bin"]]:
    """Cosines between images of one class, and of two: the share of such pairs in each bin between -1 and 1.

    >>> same, other = similarities(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]), bins=3)
    >>> same.tolist(), other.tolist()
    ([0.0, 0.0, 1.0], [0.0, 1.0, 0.0])
    """
    count = torch.zeros(2, bins, dtype=torch.float64)
    for rows, left in unit_blocks(features):
        for others, right in unit_blocks(features[rows.start :]):
            cosine = (left @ right.T).cpu()
            alike = (labels[rows].unsqueeze(1) == labels[rows.start :][others]).cpu()
            pairs = torch.ones_like(alike).triu(1) if others.start == 0 else torch.ones_like(alike)
            for kind, chosen in enumerate((alike & pairs, ~alike & pairs)):
                # 0 belongs to the bin above it: rounding must not move what is at right angles to either side.
                place = ((cosine[chosen] + 1 + 1e-9) * bins / 2).long().clamp_(0, bins - 1)
                count[kind] += torch.bincount(place, minlength=bins)
    same, other = count / count.sum(1, keepdim=True).clamp_min(1)
    return same, other


def _squared_distances_to_mean(features: Tensor, labels: Tensor) -> Float[Tensor, " sample"]:
    means, place, _ = class_means(features, labels)
    return torch.cat([(part - means[place[rows]]).pow(2).sum(1) for rows, part in unit_blocks(features)])
