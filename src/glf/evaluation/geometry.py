"""The geometry of features, and Theorem 1 term by term; what needs no labels is said without them."""

import numpy as np
import torch
from torch import Tensor

from glf.data.augment import policies
from glf.data.augment.augment import augment
from glf.data.batches import to_tensor
from glf.data.images import stratified_sample
from glf.evaluation.context import EvalContext, Metric
from glf.evaluation.theorem import NOT_COMPUTED, info_nce, theorem_terms
from glf.measure.classes import between_share, compactness, separability, within_variance
from glf.measure.geometry import alignment, effective_rank, rank_me, spread, uniformity
from glf.methods import parse
from glf.types import Batch

IMAGES = 5_000  # test images that the shape is measured on
VIEWS = 2_000  # of which two augmented views are encoded
NEGATIVES = 255
Metrics = dict[str, Metric]

THEOREM = {
    "cross_entropy": "Theorem 1: cross-entropy of class means (the left side)",
    "deviation": "  + sqrt(Var(f(x) | y))",
    "log_ratio": "  - log(n / K)",
    "bound": "  = the right side, as far as it can be computed",
    "slack": "  right less left",
    "variance": "  as it can be proved: Var(f(x) | y) instead of its root",
    "imbalance": "  + log(1 / (K min p))",
    "finite": "  + (e - 1)^2 / 2n",
    "proved": "  = the right side that can be proved",
    "proved_slack": "  right less left",
    "chance": "  log K: what constant features have",
}


def geometry(case: EvalContext) -> Metrics:
    """How many directions the features use, how they are spread, and how they lie by class."""
    x = case.test[:IMAGES].cpu()
    found = {
        "rank": Metric(effective_rank(x), "effective rank of the features"),
        "rank_me": Metric(rank_me(x), "RankMe"),
        "spread": Metric(spread(x), "spread of unit features (1 uniform, 0 collapsed)"),
        "uniformity": Metric(uniformity(x), "uniformity (log of the mean Gaussian potential, t 2)"),
    }
    if case.target.labelled:
        labels = torch.from_numpy(case.target.test.targets[:IMAGES])
        found |= {
            "compactness": Metric(compactness(x, labels), "compactness: distance to the class mean"),
            "separability": Metric(separability(x, labels), "separability: distance between class means"),
            "between": Metric(between_share(x, labels), "share of the variance between classes"),
            "within_variance": Metric(within_variance(x, labels), "Var(f(x) | y)"),
        }
    return found


def theory(case: EvalContext) -> Metrics:
    """Two augmented views of test images: alignment, InfoNCE, and with labels both sides of Theorem 1."""
    rows = stratified_sample(case.target.test.targets, min(VIEWS, len(case.target.test)), case.config.seed)
    a, b = _views(case, rows)
    negatives = min(NEGATIVES, len(rows) - 1)
    found = {
        "alignment": Metric(alignment(a, b), "alignment: squared distance of two views"),
        "info_nce": Metric(
            info_nce(a, b, negatives=negatives, seed=case.config.seed),
            f"InfoNCE (temperature 1, {negatives} negatives)",
        ),
    }
    if case.target.labelled:
        labels = torch.from_numpy(case.target.test.targets[rows])
        terms = theorem_terms(a, b, labels, negatives=negatives, seed=case.config.seed)
        detail = {"not_computed": NOT_COMPUTED}
        found |= {key: Metric(terms[key], words, detail if key == "bound" else {}) for key, words in THEOREM.items()}
    return {key: figure._replace(value=round(figure.value, 4)) for key, figure in found.items()}


@torch.inference_mode()
def _views(case: EvalContext, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Features of two views of these test images, drawn as the run drew its own."""
    trained, images = case.target.trained, case.target.test
    recipe = policies.policy(trained.augment or parse(trained.method).augment)[:2]
    generator = torch.Generator().manual_seed(case.config.seed)
    encoder = case.encoder.eval().to(case.place)
    parts: list[list[Tensor]] = [[], []]
    for start in range(0, len(rows), case.config.batch_size):
        some = rows[start : start + case.config.batch_size]
        pixels = to_tensor(images.pixels[some]).to(case.place)
        none = torch.from_numpy(some)
        drawn = augment(Batch(pixels, none, none, None), recipe, case.target.backbone.image_size, generator)
        for part, x in zip(parts, drawn.x, strict=True):
            part.append(encoder(x).float().cpu())
    a, b = (torch.cat(part) for part in parts)
    return a, b
