"""The protocols k-NN, linear probe and logistic probe. The values of k are in config/evaluation.py."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glf.config.evaluation import PAPER_KNN_K
from glf.data.images import stratified_sample
from glf.evaluation.classifiers import FeatureScaler, LogisticRegression, linear_probe
from glf.evaluation.context import EvalContext, Metric
from glf.measure.knn import knn_predict, weighted_knn_predict
from glf.ui import counted

MANY_CLASSES = 20  # from this number of classes on, top-5 accuracy is reported too

TRIAL_TOLERANCE = 1e-3  # of the logistic probe's gradient, while a strength is chosen
PATIENCE = 2  # strengths of the logistic probe that may be no better than the best, before weaker ones are left out


def knn(context: EvalContext) -> dict[str, Metric]:
    """The paper's k-NN, and the weighted k-NN of the online probe."""
    k, temperature = context.config.knn_k, context.config.knn_temperature
    bank = (context.train, context.train_labels, context.test)
    classifiers: dict[str, tuple[str, Callable[[], Tensor]]] = {
        "knn5": (
            f"k-NN (k = {PAPER_KNN_K}, Euclidean, majority vote)",
            lambda: knn_predict(*bank, PAPER_KNN_K),
        ),
        "knn": (
            f"k-NN (k = {k}, cosine, temperature {temperature:g})",
            lambda: weighted_knn_predict(*bank, k, temperature),
        ),
    }
    metrics = {}
    for key, (protocol, predict) in classifiers.items():
        with context.or_missing(protocol):  # fewer training images than k: the other classifier may need fewer
            metrics[key] = context.accuracy(hits(predict(), context.test_labels), protocol)
    return metrics


def linear(context: EvalContext) -> dict[str, Metric]:
    """The paper's linear probe."""
    config = context.config
    fits = 1 if len(config.probe_lrs) == 1 else 2
    with context.progress(fits * config.probe_epochs, "linear probe") as advance:
        probe = partial(
            linear_probe, classes=context.classes, epochs=config.probe_epochs, seed=config.seed, advance=advance
        )
        best = config.probe_lrs[0]
        if fits > 1:
            held_out, (train, labels) = _held_out(context), (context.train, context.train_labels)
            tried = probe(train[~held_out], labels[~held_out], train[held_out], config.probe_lrs)
            accuracies = [_accuracy(logits, labels[held_out]) for logits in tried]
            best = config.probe_lrs[int(np.argmax(accuracies))]  # the first of equals
        logits = probe(context.train, context.train_labels, context.test, (best,))[0]
    chosen, epochs = _best_of(config.probe_lrs), counted(config.probe_epochs, "epoch")
    return _top_1_and_5(context, logits, "linear", f"linear probe (SGD, {epochs}{chosen})")


def logistic(context: EvalContext) -> dict[str, Metric]:
    """Logistic regression by L-BFGS on standardised features, with the strength that is best on held-out images.

    Strengths are tried from the strongest regularisation to the weakest, each from the weights of the one before; the
    last fit, on all training images, starts from the weights of the best one.
    """
    strengths, labels, scaler = sorted(context.config.logistic_c), context.train_labels, FeatureScaler(context.train)
    train = scaler(context.train)
    model = LogisticRegression(context.classes)
    best, strength = model, strengths[0]
    with context.progress(len(strengths) + (len(strengths) > 1), "logistic probe") as advance:
        if len(strengths) > 1:
            held_out = _held_out(context)
            part, others = (train[~held_out], labels[~held_out]), (train[held_out], labels[held_out])
            highest, since = -1.0, 0
            for one in strengths:
                accuracy = _accuracy(model.fit(*part, one, tolerance=TRIAL_TOLERANCE)(others[0]), others[1])
                advance()
                since += 1
                if accuracy > highest:
                    best, strength, highest, since = deepcopy(model), one, accuracy, 0
                if since == PATIENCE:
                    break
        logits = best.fit(train, labels, strength)(scaler(context.test))
    return _top_1_and_5(context, logits, "logistic", f"logistic probe (L-BFGS{_best_of(strengths)})")


def _held_out(context: EvalContext) -> Bool[Tensor, " train"]:
    """A stratified tenth of the training images."""
    labels = context.train_labels
    sample = stratified_sample(labels.cpu().numpy(), max(1, len(labels) // 10), context.config.seed)
    held_out = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    held_out[torch.from_numpy(sample)] = True
    return held_out


def _accuracy(logits: Float[Tensor, "image classes"], labels: Int[Tensor, " image"]) -> float:
    return float((logits.argmax(-1) == labels).double().mean())


def _best_of(settings: Sequence[float]) -> str:
    return f", best of {len(settings)} on a tenth of train" if len(settings) > 1 else ""


def _top_1_and_5(
    context: EvalContext, logits: Float[Tensor, "test classes"], key: str, protocol: str
) -> dict[str, Metric]:
    """Top-1 accuracy; with many classes, also top-5."""
    metrics = {key: context.accuracy(hits(logits.argmax(1), context.test_labels), protocol)}
    if context.classes >= MANY_CLASSES:
        top_5 = hits(logits.topk(5).indices, context.test_labels)
        metrics[f"{key}_top5"] = context.accuracy(top_5, f"{protocol}, top-5")
    return metrics


def hits(predicted: Int[Tensor, "test *best"], labels: Int[Tensor, " test"]) -> Bool[Tensor, " test"]:
    """Whether the label of each test image is among its predictions, one or several."""
    return (predicted.reshape(len(predicted), -1) == labels.unsqueeze(1)).any(1)
