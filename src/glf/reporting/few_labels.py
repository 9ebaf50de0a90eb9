"""Few labels in the report: a curve for each encoder, and how many times the labels a reference needs."""

import re
from itertools import pairwise
from typing import NamedTuple

from glf.reporting.chart import Chart, Point, Series
from glf.reporting.load import Run

CLASSIFIERS = {"logistic": "logistic regression", "nearest": "nearest neighbour"}
LABELS = 10  # per class, at which encoders are compared


def few_label_charts(run: Run) -> list[Chart]:
    """Accuracy against labels per class, a chart for each classifier."""
    charts = []
    for classifier, name in CLASSIFIERS.items():
        curves = {encoder: accuracies(run, classifier, encoder) for encoder in run.encoders}
        series = tuple(
            Series(name=encoder, points=tuple(Point(labels, 100 * value) for labels, value in curve.items()))
            for encoder, curve in curves.items()
            if len(curve) > 1
        )
        title = f"few labels: accuracy in %, {name}"
        charts.append(Chart(key=f"few-{classifier}", title=title, series=series, x="labels per class", log_x=True))
    return [chart for chart in charts if chart.series]


def accuracies(run: Run, classifier: str, encoder: str = "trained") -> dict[int, float]:
    """Accuracy by the number of labels per class."""
    found = run.evaluation.get("rows", {}).get(encoder, {})
    numbers = sorted(int(m[1]) for key in found if (m := re.fullmatch(rf"{classifier}(\d+)", key)))
    return {number: found[f"{classifier}{number}"] for number in numbers}


class LabelFactor(NamedTuple):
    """How many times the labels a reference needs for the accuracy that the trained encoder has with `labels`."""

    reference: str
    labels: int
    times: float
    at_least: bool  # the reference does not reach it with any measured number of labels


def label_factor(run: Run, reference: str = "pixels", classifier: str = "logistic") -> LabelFactor | None:
    """The factor at ten labels per class; None if it was not measured, or if the trained encoder is not better."""
    ours, theirs = accuracies(run, classifier), accuracies(run, classifier, reference)
    if LABELS not in ours or LABELS not in theirs or ours[LABELS] <= theirs[LABELS]:
        return None
    found = labels_needed(theirs, ours[LABELS])
    return LabelFactor(reference, LABELS, (found or max(theirs)) / LABELS, found is None)


def labels_needed(curve: dict[int, float], accuracy: float) -> float | None:
    """Number of labels with which a curve first reaches an accuracy, linear in their logarithm; None if it does not.

    >>> round(labels_needed({1: 0.5, 10: 0.7, 100: 0.8}, 0.75), 3), labels_needed({1: 0.5, 10: 0.7}, 0.75)
    (31.623, None)
    """
    points = sorted(curve.items())
    if accuracy <= points[0][1]:
        return float(points[0][0])
    for (few, low), (many, high) in pairwise(points):
        if low <= accuracy <= high and high > low:
            share = (accuracy - low) / (high - low)
            return float(few * (many / few) ** share)
    return None
