"""Theorem 1 of the paper, term by term: what the contrastive loss says of a classifier made of class means."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.measure.blocks import unit_blocks
from glf.measure.classes import class_means, within_variance

NOT_COMPUTED = (
    "O(n^-1/2), printed without its constant; (e - 1)^2 / 2n is enough, and is computed",
    "O(sqrt(1 + 1/n) R / M): the Rademacher complexity of all networks that could have been learnt, and its constant",
    "O(sqrt(log(1/delta) log^2(n) / M)): its constant",
    "f*, a minimiser of the contrastive loss: the features of any network can be given, and the bound holds for each",
)
"""What no measurement of features gives. The second and the third compare the training set with all images."""


def mean_cross_entropy(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Cross-entropy of the classifier whose weights are the class means of unit features.

    .. math:: L_{CE}^\mu = \frac{1}{n} \sum_i -\log \frac{\exp(u_i^T \mu_{y_i})}{\sum_k \exp(u_i^T \mu_k)}

    Over the K classes that occur. Logits of unit features are between -1 and 1, so that it never comes near 0: ten
    classes have at least 1.377 (means at the corners of a simplex), constant features log 10 = 2.303. One class has 0.

    Reference: Eq. 5; Arora et al. 2019. Differs from the paper: features are of unit length, as Theorem 1 needs them
    bounded; means are those of the same samples.

    >>> round(mean_cross_entropy(torch.tensor([[3.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1])), 4)  # log(1 + e^-2)
    0.1269
    """
    means, place, _ = class_means(features, labels)
    parts = unit_blocks(features)
    return float(sum(F.cross_entropy(x @ means.T, place[rows], reduction="sum") for rows, x in parts)) / len(labels)


def info_nce(
    a: Float[Tensor, "sample dim"],
    b: Float[Tensor, "sample dim"],
    *,
    temperature: float = 1.0,
    negatives: int = 255,
    seed: int = 0,
) -> float:
    r"""InfoNCE of two views of the same images, with n other images as negatives.

    .. math:: \frac{1}{m} \sum_i -\log \frac{e^{s(a_i, b_i)}}{e^{s(a_i, b_i)} + \sum_{j \ne i} e^{s(a_i, b_j)}},
        \quad s = \cos / \tau

    where j runs over the n other images of a batch of n + 1; the mean of this and of the same with a and b exchanged.
    Batches are cut from an order drawn with ``seed``; images that do not fill the last one are left out. It is at most
    log(n + 1) + 2/tau, and log(n + 1) for one point.

    Reference: the paper's Eq. 1; Arora et al. 2019.
    Differs from the paper: the mean over anchors, as Theorem 1 must mean it, not their sum; and negatives are of the
    other view alone, so that there are n of them, one per image, independent of each other. Eq. 1, and so `simclr`, has
    both views of each other image: 2n negatives, in pairs. Less log n and log 2n, both tend to Eq. 2.

    >>> round(info_nce(torch.eye(2), torch.eye(2), negatives=1), 4)  # log(1 + 1/e)
    0.3133
    """
    size = negatives + 1
    if negatives < 1 or size > len(a):
        raise ValueError(f"{negatives} negatives of {len(a)} images: choose between 1 and {len(a) - 1}")
    order = torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))
    batches = order[: len(a) // size * size].to(a.device).view(-1, size)
    losses = [_against(x, y, temperature) for rows in batches for x, y in ((a[rows], b[rows]), (b[rows], a[rows]))]
    return float(torch.stack(losses).mean())


def _against(anchors: Tensor, others: Tensor, temperature: float) -> Tensor:
    """One batch, a block of anchors at a time."""
    losses = []
    for rows, x in unit_blocks(anchors):
        own = (x * F.normalize(others[rows].double(), dim=1)).sum(1) / temperature
        partition = torch.stack([(x @ y.T / temperature).logsumexp(1) for _, y in unit_blocks(others)]).logsumexp(0)
        losses.append(partition - own)
    return torch.cat(losses).mean()


def theorem_terms(
    a: Float[Tensor, "sample dim"],
    b: Float[Tensor, "sample dim"],
    labels: Int[Tensor, " sample"],
    *,
    negatives: int = 255,
    seed: int = 0,
) -> dict[str, float]:
    r"""Both sides of Theorem 1 for two augmented views of labelled images: as printed, and as it can be proved.

    Printed, with what can be computed of it (`NOT_COMPUTED` names the rest): ``slack`` is ``bound - cross_entropy`` in

    .. math:: L_{CE}^\mu \le L_{NCE} + \sqrt{\mathrm{Var}(f(x) \mid y)} - \log(n / K)

    Proved, for unit features of any f, ``proved_slack`` is ``proved - cross_entropy`` in

    .. math:: L_{CE}^\mu \le L_{NCE} + \mathrm{Var}(f(x) \mid y) - \log(n / K)
        + \log \frac{1}{K \min_k p_k} + \frac{(e - 1)^2}{2n}

    whose terms are ``info_nce``, ``variance``, ``log_ratio``, ``imbalance`` and ``finite``. A bound above ``chance``,
    log K, says nothing that constant features would not. docs/equations.md has the proof, and where the printed form
    fails.

    x is an augmented view: both views count as samples of L_CE, Var and the class means. The inequality is one of
    expectations: negatives come from all images, those of the anchor's own class as well. A sample of m images gives
    it up to terms of the order 1/m, as no image is its own negative, and the noise of the batches that were drawn.

    Reference: Theorem 1 (Eq. 6 and 7); Wang et al. 2022.

    >>> terms = theorem_terms(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), negatives=1)
    >>> {key: round(terms[key], 4) for key in ("cross_entropy", "info_nce", "variance", "log_ratio", "slack")}
    {'cross_entropy': 0.3133, 'info_nce': 0.3133, 'variance': 0.0, 'log_ratio': 0.6931, 'slack': 0.6931}
    """
    views, twice = torch.cat((a, b)), torch.cat((labels, labels))
    left = mean_cross_entropy(views, twice)
    nce = info_nce(a, b, negatives=negatives, seed=seed)
    variance = within_variance(views, twice)
    count = torch.unique(labels, return_counts=True)[1]
    classes, rarest = len(count), int(count.min()) / len(labels)
    log_ratio = -math.log(negatives / classes)
    imbalance, finite = math.log(1 / (classes * rarest)), (math.e - 1) ** 2 / (2 * negatives)
    bound = nce + math.sqrt(variance) + log_ratio
    proved = nce + variance + log_ratio + imbalance + finite
    return {
        "cross_entropy": left,
        "info_nce": nce,
        "deviation": math.sqrt(variance),
        "log_ratio": log_ratio,
        "bound": bound,
        "slack": bound - left,
        "variance": variance,
        "imbalance": imbalance,
        "finite": finite,
        "proved": proved,
        "proved_slack": proved - left,
        "chance": math.log(classes),
    }
