"""Accuracy from few labels: 1, 10 and 100 labels per class, averaged over random draws of the labelled images."""

from statistics import stdev

import numpy as np
import torch
from torch import Tensor

from glf.config.evaluation import SHOT_DRAWS, SHOTS
from glf.evaluation.classifiers import FeatureScaler, LogisticRegression
from glf.evaluation.context import CONFIDENCE, EvalContext, Metric
from glf.measure.intervals import t_interval
from glf.measure.knn import most_similar
from glf.ui import counted

STRENGTH = 0.01  # C of the logistic regression: so few labels leave none to choose it with
MOST_LABELS = 20_000  # with more, a draw of logistic regression takes minutes, and it is left out
CLASSIFIERS = {"nearest": "nearest neighbour, cosine", "logistic": "logistic regression"}


def fewshot(context: EvalContext) -> dict[str, Metric]:
    """Nearest neighbour and logistic regression, for each number of labels per class that the data allow."""
    labels = context.train_labels.cpu().numpy()
    largest = np.unique(labels, return_counts=True)[1].max()
    used = [shots for shots in SHOTS if shots <= largest]
    scaler = FeatureScaler(context.train)  # of all features: it needs no labels
    queries = scaler(context.test)
    found: dict[tuple[str, int], list[float]] = {}
    with context.progress(SHOT_DRAWS * len(used), "few labels") as advance:
        for shots in used:
            for draw in range(SHOT_DRAWS):
                rows = torch.from_numpy(draw_shots(labels, shots, context.config.seed + draw)).to(context.device)
                x, y = context.train[rows], context.train_labels[rows]
                predicted: dict[str, Tensor] = {"nearest": y[most_similar(x, context.test, 1)[1][:, 0].to(y.device)]}
                if shots * context.classes <= MOST_LABELS:
                    model = LogisticRegression(context.classes).fit(scaler(x), y, STRENGTH)
                    predicted["logistic"] = model(queries).argmax(1)
                for classifier, classes in predicted.items():
                    accuracy = float((classes == context.test_labels).double().mean())
                    found.setdefault((classifier, shots), []).append(accuracy)
                advance()
    return {
        f"{classifier}{shots}": _metric(classifier, shots, found[classifier, shots])
        for classifier in CLASSIFIERS
        for shots in used
        if (classifier, shots) in found
    }


def _metric(classifier: str, shots: int, accuracies: list[float]) -> Metric:
    """Mean over draws, with its t-interval."""
    mean, low, high = t_interval(accuracies, CONFIDENCE)
    protocol = f"{counted(shots, 'label')} per class ({CLASSIFIERS[classifier]}, {len(accuracies)} draws)"
    details = {"interval": (round(low, 4), round(high, 4)), "spread": round(stdev(accuracies), 4)}
    return Metric(round(mean, 4), protocol, details, percent=True)


def draw_shots(labels: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Indices of at most ``shots`` random images of each class.

    >>> labels = np.array([0, 0, 0, 1, 1, 1])
    >>> labels[draw_shots(labels, 2, seed=0)].tolist()
    [0, 0, 1, 1]
    """
    order = np.random.default_rng([seed, 11]).permutation(len(labels))
    chosen = [order[labels[order] == label][:shots] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen))
