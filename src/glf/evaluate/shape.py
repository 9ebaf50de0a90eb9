"""The geometry of features, and Theorem 1 term by term; what needs no labels is said without them."""

import numpy as np
import torch
from torch import Tensor

from glf.data import views
from glf.data.augment import augment
from glf.data.loader import draw, to_tensor
from glf.evaluate.case import Case, Figure
from glf.evaluate.theory import NOT_COMPUTED, info_nce, theorem_terms
from glf.measure.classes import between_share, compactness, separability, within_variance
from glf.measure.geometry import alignment, effective_rank, rank_me, spread, uniformity
from glf.methods import parse
from glf.types import Batch

IMAGES = 5_000  # test images that the shape is measured on
VIEWS = 2_000  # of which two augmented views are encoded
NEGATIVES = 255
Found = dict[str, Figure]

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


def geometry(case: Case) -> Found:
    """How many directions the features use, how they are spread, and how they lie by class."""
    x = case.test[:IMAGES].cpu()
    found = {
        "rank": Figure(effective_rank(x), "effective rank of the features"),
        "rank_me": Figure(rank_me(x), "RankMe"),
        "spread": Figure(spread(x), "spread of unit features (1 uniform, 0 collapsed)"),
        "uniformity": Figure(uniformity(x), "uniformity (log of the mean Gaussian potential, t 2)"),
    }
    if case.subject.labelled:
        labels = torch.from_numpy(case.subject.test.targets[:IMAGES])
        found |= {
            "compactness": Figure(compactness(x, labels), "compactness: distance to the class mean"),
            "separability": Figure(separability(x, labels), "separability: distance between class means"),
            "between": Figure(between_share(x, labels), "share of the variance between classes"),
            "within_variance": Figure(within_variance(x, labels), "Var(f(x) | y)"),
        }
    return found


def theory(case: Case) -> Found:
    """Two augmented views of test images: alignment, InfoNCE, and with labels both sides of Theorem 1."""
    rows = draw(case.subject.test.targets, min(VIEWS, len(case.subject.test)), case.config.seed)
    a, b = _views(case, rows)
    negatives = min(NEGATIVES, len(rows) - 1)
    found = {
        "alignment": Figure(alignment(a, b), "alignment: squared distance of two views"),
        "info_nce": Figure(
            info_nce(a, b, negatives=negatives, seed=case.config.seed),
            f"InfoNCE (temperature 1, {negatives} negatives)",
        ),
    }
    if case.subject.labelled:
        labels = torch.from_numpy(case.subject.test.targets[rows])
        terms = theorem_terms(a, b, labels, negatives=negatives, seed=case.config.seed)
        detail = {"not_computed": NOT_COMPUTED}
        found |= {key: Figure(terms[key], words, detail if key == "bound" else {}) for key, words in THEOREM.items()}
    return {key: figure._replace(value=round(figure.value, 4)) for key, figure in found.items()}


@torch.inference_mode()
def _views(case: Case, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Features of two views of these test images, drawn as the run drew its own."""
    trained, images = case.subject.trained, case.subject.test
    recipe = views.recipe(trained.views or parse(trained.method).views)[:2]
    generator = torch.Generator().manual_seed(case.config.seed)
    encoder = case.encoder.eval().to(case.place)
    parts: list[list[Tensor]] = [[], []]
    for start in range(0, len(rows), case.config.batch_size):
        some = rows[start : start + case.config.batch_size]
        pixels = to_tensor(images.pixels[some]).to(case.place)
        none = torch.from_numpy(some)
        drawn = augment(Batch(pixels, none, none, None), recipe, case.subject.backbone.image_size, generator)
        for part, x in zip(parts, drawn.x, strict=True):
            part.append(encoder(x).float().cpu())
    a, b = (torch.cat(part) for part in parts)
    return a, b
