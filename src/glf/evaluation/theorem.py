"""Theorem 1 of the paper, term by term: InfoNCE bounds the cross-entropy of the classifier made of class means.

`theory` is the evaluation (--suite theory). `LABELS` names the terms, in the table and in the report.
"""

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.data.augment.augment import augment
from glf.data.augment.policies import policy
from glf.data.batches import to_tensor
from glf.data.images import stratified_sample
from glf.evaluation.context import EvalContext, Metric
from glf.measure.blocks import TooFewError, unit_blocks
from glf.measure.classes import class_means, within_variance
from glf.measure.geometry import alignment
from glf.methods import method_of
from glf.types import Batch

VIEWED_IMAGES = 2_000  # test images that two augmented views are encoded of
NEGATIVES = 255

LABELS = {
    "cross_entropy": "Theorem 1, left side: cross-entropy of class means",
    "deviation": "  + sqrt(Var(f(x) | y))",
    "log_ratio": "  - log(n / K)",
    "bound": "  = right side as printed",
    "slack": "  right side - left side",
    "variance": "  + Var(f(x) | y), proved form",
    "imbalance": "  + log(1 / (K min p))",
    "finite": "  + (e - 1)² / 2n",
    "proved": "  = right side, proved form",
    "proved_slack": "  right side - left side, proved form",
    "chance": "  log K: cross-entropy of constant features",
}

NOT_COMPUTED = (
    "O(n^-1/2), printed without its constant; (e - 1)^2 / 2n suffices and is computed",
    "O(sqrt(1 + 1/n) R / M): the Rademacher complexity of the class of networks, and its constant",
    "O(sqrt(log(1/delta) log^2(n) / M)): its constant",
    "f*, the minimiser of the contrastive loss: the features of any network are used, and the bound holds for each",
)
"""Terms of the printed bound that cannot be measured. The second and third compare the training set with all images."""


def mean_cross_entropy(features: Float[Tensor, "sample dim"], labels: Int[Tensor, " sample"]) -> float:
    r"""Cross-entropy of the classifier that has the class means of unit features as its weights.

    .. math:: L_{CE}^\mu = \frac{1}{n} \sum_i -\log \frac{\exp(u_i^T \mu_{y_i})}{\sum_k \exp(u_i^T \mu_k)}

    Over the K classes that occur. The logits of unit features are between -1 and 1, so the cross-entropy never comes
    near 0: with ten classes it is at least 1.377 (means at the corners of a simplex), and log 10 = 2.303 for constant
    features. With one class it is 0.

    Reference: Eq. 5; Arora et al. 2019. Differs from the paper: features have unit length, because Theorem 1 needs them
    bounded; the means are those of the same samples.

    >>> round(mean_cross_entropy(torch.tensor([[3.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1])), 4)  # log(1 + e^-2)
    0.1269
    """
    means, class_of, _ = class_means(features, labels)
    blocks = unit_blocks(features)
    total = sum(F.cross_entropy(x @ means.T, class_of[indices], reduction="sum") for indices, x in blocks)
    return float(total) / len(labels)


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

    where j runs over the n other images of a batch of n + 1; averaged with the same after swapping a and b. Batches
    are cut from a permutation drawn with ``seed``; an incomplete last batch is dropped. The value is at most
    log(n + 1) + 2/tau, and log(n + 1) for constant features.

    Reference: the paper's Eq. 1; Arora et al. 2019.
    Differs from the paper: the mean over anchors, as Theorem 1 must mean it, not their sum; and negatives come from the
    other view only, so that there are n of them, one per image, independent of each other. Eq. 1, and so `simclr`, has
    both views of each other image: 2n negatives, in pairs. After subtracting log n and log 2n, both tend to Eq. 2.

    >>> round(info_nce(torch.eye(2), torch.eye(2), negatives=1), 4)  # log(1 + 1/e)
    0.3133
    """
    size = negatives + 1
    if negatives < 1 or size > len(a):
        raise TooFewError(f"{negatives} negatives of {len(a)} images: choose between 1 and {len(a) - 1}")
    order = torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))
    batches = order[: len(a) // size * size].to(a.device).view(-1, size)
    losses = [
        _info_nce_of_batch(x, y, temperature)
        for batch in batches
        for x, y in ((a[batch], b[batch]), (b[batch], a[batch]))
    ]
    return float(torch.stack(losses).mean())


def _info_nce_of_batch(anchors: Tensor, others: Tensor, temperature: float) -> Tensor:
    losses = []
    for indices, x in unit_blocks(anchors):
        positive = (x * F.normalize(others[indices].double(), dim=1)).sum(1) / temperature
        partition = torch.stack([(x @ y.T / temperature).logsumexp(1) for _, y in unit_blocks(others)]).logsumexp(0)
        losses.append(partition - positive)
    return torch.cat(losses).mean()


def theorem_terms(
    a: Float[Tensor, "sample dim"],
    b: Float[Tensor, "sample dim"],
    labels: Int[Tensor, " sample"],
    *,
    negatives: int = 255,
    seed: int = 0,
) -> dict[str, float]:
    r"""Both sides of Theorem 1 for two augmented views of labelled images, as printed and as proved.

    As printed, without the terms in `NOT_COMPUTED`: ``slack`` is ``bound - cross_entropy`` in

    .. math:: L_{CE}^\mu \le L_{NCE} + \sqrt{\mathrm{Var}(f(x) \mid y)} - \log(n / K)

    As proved, for unit features of any f: ``proved_slack`` is ``proved - cross_entropy`` in

    .. math:: L_{CE}^\mu \le L_{NCE} + \mathrm{Var}(f(x) \mid y) - \log(n / K)
        + \log \frac{1}{K \min_k p_k} + \frac{(e - 1)^2}{2n}

    with the terms ``info_nce``, ``variance``, ``log_ratio``, ``imbalance`` and ``finite``. A bound above ``chance``,
    log K, is vacuous: constant features reach log K. docs/equations.md has the proof, and the counterexamples to the
    printed form.

    x is an augmented view: both views are samples for L_CE, Var and the class means. The inequality holds for
    expectations: negatives come from all images, including the anchor's own class. For a sample of m images it holds up
    to terms of order 1/m, because no image is its own negative, and up to the noise of the drawn batches.

    Reference: Theorem 1 (Eq. 6 and 7); Wang et al. 2022.

    >>> terms = theorem_terms(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), negatives=1)
    >>> {key: round(terms[key], 4) for key in ("cross_entropy", "info_nce", "variance", "log_ratio", "slack")}
    {'cross_entropy': 0.3133, 'info_nce': 0.3133, 'variance': 0.0, 'log_ratio': 0.6931, 'slack': 0.6931}
    """
    views, view_labels = torch.cat((a, b)), torch.cat((labels, labels))
    cross_entropy = mean_cross_entropy(views, view_labels)
    nce = info_nce(a, b, negatives=negatives, seed=seed)
    variance = within_variance(views, view_labels)
    counts = torch.unique(labels, return_counts=True)[1]
    classes, rarest = len(counts), int(counts.min()) / len(labels)
    log_ratio = -math.log(negatives / classes)
    imbalance, finite = math.log(1 / (classes * rarest)), (math.e - 1) ** 2 / (2 * negatives)
    bound = nce + math.sqrt(variance) + log_ratio
    proved = nce + variance + log_ratio + imbalance + finite
    return {
        "cross_entropy": cross_entropy,
        "info_nce": nce,
        "deviation": math.sqrt(variance),
        "log_ratio": log_ratio,
        "bound": bound,
        "slack": bound - cross_entropy,
        "variance": variance,
        "imbalance": imbalance,
        "finite": finite,
        "proved": proved,
        "proved_slack": proved - cross_entropy,
        "chance": math.log(classes),
    }


def theory(context: EvalContext) -> dict[str, Metric]:
    """Alignment and InfoNCE of two augmented views of test images; with labels, also the terms of Theorem 1."""
    test, seed = context.target.test, context.config.seed
    indices = stratified_sample(test.targets, min(VIEWED_IMAGES, len(test)), seed)
    a, b = _features_of_views(context, indices)
    negatives = min(NEGATIVES, len(indices) - 1)
    metrics = {
        "alignment": Metric(alignment(a, b), "alignment: squared distance of two views"),
        "info_nce": Metric(
            info_nce(a, b, negatives=negatives, seed=seed), f"InfoNCE (temperature 1, {negatives} negatives)"
        ),
    }
    if context.target.labelled:
        labels = torch.from_numpy(test.targets[indices])
        terms = theorem_terms(a, b, labels, negatives=negatives, seed=seed)
        metrics |= {key: Metric(terms[key], label) for key, label in LABELS.items()}
        metrics["bound"] = metrics["bound"]._replace(details={"not_computed": NOT_COMPUTED})
    return {key: metric._replace(value=round(metric.value, 4)) for key, metric in metrics.items()}


@torch.inference_mode()
def _features_of_views(context: EvalContext, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """Features of two views of these test images, augmented as in the pretraining of the target."""
    pretraining, images = context.target.pretraining, context.target.test
    two_views = policy(pretraining.augment or method_of(pretraining).augment)[:2]
    generator = torch.Generator().manual_seed(context.config.seed)
    encoder = context.encoder.eval().to(context.device)
    features: tuple[list[Tensor], list[Tensor]] = ([], [])
    for batch in np.split(indices, range(context.config.batch_size, len(indices), context.config.batch_size)):
        pixels, numbers = to_tensor(images.pixels[batch]).to(context.device), torch.from_numpy(batch)
        views = augment(Batch(pixels, numbers, numbers, None), two_views, context.target.backbone.image_size, generator)
        for found, x in zip(features, views.x, strict=True):
            found.append(encoder(x).float().cpu())
    return torch.cat(features[0]), torch.cat(features[1])
