"""Geometry of the features (--suite geometry): rank, spread and uniformity; with labels, also by class."""

import math
from collections.abc import Callable

import torch

from glf.evaluation.context import EvalContext, Metric
from glf.measure.blocks import TooFewError
from glf.measure.classes import between_share, compactness, separability, within_variance
from glf.measure.geometry import effective_rank, rank_me, spread, uniformity
from glf.ui import counted

IMAGES = 5_000  # test images measured, at most


def geometry(context: EvalContext) -> dict[str, Metric]:
    """Measures of the test features, see docs/protocols.md."""
    x = context.test[:IMAGES].cpu()
    labels = torch.from_numpy(context.target.test.targets[:IMAGES])
    measures: dict[str, tuple[str, Callable[[], float]]] = {
        "rank": ("effective rank of the features", lambda: effective_rank(x)),
        "rank_me": ("RankMe", lambda: rank_me(x)),
        "spread": ("spread of unit features (1 uniform, 0 collapsed)", lambda: spread(x)),
        "uniformity": ("uniformity (log of the mean Gaussian potential, t = 2)", lambda: uniformity(x)),
    }
    if context.target.labelled:
        measures |= {
            "compactness": ("compactness: distance to the class mean", lambda: compactness(x, labels)),
            "separability": ("separability: distance between class means", lambda: separability(x, labels)),
            "between": ("fraction of the variance between classes", lambda: between_share(x, labels)),
            "within_variance": ("Var(f(x) | y)", lambda: within_variance(x, labels)),
        }
    metrics = {}
    for key, (protocol, measure) in measures.items():
        with context.or_missing(protocol):
            value = measure()
            if not math.isfinite(value):
                raise TooFewError(f"not defined for {counted(len(x), 'image')}")
            metrics[key] = Metric(value, protocol)
    return metrics
