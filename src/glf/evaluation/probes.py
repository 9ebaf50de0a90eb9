"""The protocols k-NN, linear probe and logistic probe. The values of k are in config/evaluation.py."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glf.config.evaluation import PAPER_KNN_K
from glf.data.images import stratified_sample
from glf.evaluation.classifiers import linear_probe, logistic_probe
from glf.evaluation.context import EvalContext, Metric
from glf.measure.knn import knn_predict, weighted_knn_predict
from glf.ui import counted, say

MANY_CLASSES = 20  # from this number of classes on, top-5 accuracy is reported too

TRIAL_TOLERANCE = 1e-3  # of the logistic probe's gradient, while a strength is chosen
PATIENCE = 2  # strengths of the logistic probe that may be no better than the best, before weaker ones are left out

# Training features, their labels, test features, settings to try -> test logits for each setting.
Probe = Callable[[Tensor, Tensor, Tensor, Sequence[float]], Iterable[Tensor]]


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
        try:
            metrics[key] = context.accuracy(hits(predict(), context.test_labels), protocol)
        except ValueError as error:  # fewer training images than k: the other classifier may need fewer
            say(context.console, f"no {protocol}: {error}")
    return metrics


def linear(context: EvalContext) -> dict[str, Metric]:
    """The paper's linear probe."""
    config = context.config
    fits = 1 if len(config.probe_lrs) == 1 else 2
    with context.progress(fits * config.probe_epochs, "linear probe") as advance:
        probe = partial(
            linear_probe, classes=context.classes, epochs=config.probe_epochs, seed=config.seed, advance=advance
        )
        logits = _fit_best(context, probe, config.probe_lrs)
    chosen, epochs = _best_of(config.probe_lrs), counted(config.probe_epochs, "epoch")
    return _top_1_and_5(context, logits, "linear", f"linear probe (SGD, {epochs}{chosen})")


def logistic(context: EvalContext) -> dict[str, Metric]:
    """Logistic regression by L-BFGS."""
    strengths = sorted(context.config.logistic_c)
    with context.progress(len(strengths) + (len(strengths) > 1), "logistic probe") as advance:
        probe = partial(logistic_probe, classes=context.classes, advance=advance)
        logits = _fit_best(
            context, probe, strengths, trial=partial(probe, tolerance=TRIAL_TOLERANCE), patience=PATIENCE
        )
    return _top_1_and_5(context, logits, "logistic", f"logistic probe (L-BFGS{_best_of(strengths)})")


def _fit_best(
    context: EvalContext,
    probe: Probe,
    settings: Sequence[float],
    trial: Probe | None = None,
    patience: int | None = None,
) -> Float[Tensor, "test classes"]:
    """Test logits of the probe with the setting that is best on a held-out tenth of train, fitted to all of train.

    Settings are tried with ``trial``, a faster version of the probe if there is one; with ``patience``, in order and
    until that many in a row were no better than the best.
    """
    train, labels, best = context.train, context.train_labels, settings[0]
    if len(settings) > 1:
        sample = stratified_sample(labels.cpu().numpy(), max(1, len(labels) // 10), context.config.seed)
        held_out = torch.zeros(len(train), dtype=torch.bool, device=train.device)
        held_out[torch.from_numpy(sample)] = True
        highest, since = -1.0, 0
        for setting, logits in zip(
            settings, probe(train[~held_out], labels[~held_out], train[held_out], settings), strict=False
        ):
            accuracy = float((logits.argmax(1) == labels[held_out]).double().mean())
            since += 1
            if accuracy > highest:  # the first of equals
                best, highest, since = setting, accuracy, 0
            if since == patience:
                break
    return next(iter(probe(train, labels, context.test, (best,))))


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
