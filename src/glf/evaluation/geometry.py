"""Geometry of the features (--suite geometry): rank, spread and uniformity; with labels, also by class."""

import torch

from glf.evaluation.context import EvalContext, Metric
from glf.measure.classes import between_share, compactness, separability, within_variance
from glf.measure.geometry import effective_rank, rank_me, spread, uniformity

IMAGES = 5_000  # test images measured, at most


def geometry(context: EvalContext) -> dict[str, Metric]:
    """Measures of the test features, see docs/protocols.md."""
    x = context.test[:IMAGES].cpu()
    metrics = {
        "rank": Metric(effective_rank(x), "effective rank of the features"),
        "rank_me": Metric(rank_me(x), "RankMe"),
        "spread": Metric(spread(x), "spread of unit features (1 uniform, 0 collapsed)"),
        "uniformity": Metric(uniformity(x), "uniformity (log of the mean Gaussian potential, t = 2)"),
    }
    if context.target.labelled:
        labels = torch.from_numpy(context.target.test.targets[:IMAGES])
        metrics |= {
            "compactness": Metric(compactness(x, labels), "compactness: distance to the class mean"),
            "separability": Metric(separability(x, labels), "separability: distance between class means"),
            "between": Metric(between_share(x, labels), "fraction of the variance between classes"),
            "within_variance": Metric(within_variance(x, labels), "Var(f(x) | y)"),
        }
    return metrics
