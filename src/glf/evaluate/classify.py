"""What features say about classes: neighbours and linear classifiers."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from glf.data.loader import draw
from glf.evaluate.case import Case, Figure
from glf.evaluate.linear import linear_probe, logistic_probe
from glf.measure.neighbours import nearest_neighbours, weighted_neighbours

MANY_CLASSES = 20  # with fewer, to be among the best five says little
Found = dict[str, Figure]


def knn(case: Case) -> Found:
    """The paper's 5-nn, and the weighted kNN of the online probe."""
    config, bank = case.config, (case.train, case.train_labels, case.test)
    ways: dict[str, tuple[str, Callable[[], Tensor]]] = {
        "knn5": ("5-nn (Euclidean, majority)", lambda: nearest_neighbours(*bank, 5)),
        "knn": (
            f"kNN (cosine, k {config.knn_k}, temperature {config.knn_temperature:g})",
            lambda: weighted_neighbours(*bank, config.knn_k, config.knn_temperature),
        ),
    }
    found = {}
    for key, (words, predicted) in ways.items():
        try:
            found[key] = case.accuracy(hits(predicted(), case.test_labels), words)
        except ValueError as error:  # too few images for so many neighbours: the other way may need fewer
            case.console.print(f"no {words}: {error}", highlight=False)
    return found


def linear(case: Case) -> Found:
    """The paper's linear probe."""
    config = case.config
    options = {"epochs": config.probe_epochs, "seed": config.seed}
    logits = _chosen(linear_probe, "rates", config.probe_rates, case, options)
    return _best(case, logits, "linear", f"linear probe (SGD, {config.probe_epochs} epochs{_of(config.probe_rates)})")


def logistic(case: Case) -> Found:
    """Logistic regression by L-BFGS."""
    logits = _chosen(logistic_probe, "strengths", case.config.strengths, case, {})
    return _best(case, logits, "logistic", f"logistic probe (L-BFGS{_of(case.config.strengths)})")


def hits(predicted: Int[Tensor, "test *best"], labels: Int[Tensor, " test"]) -> Bool[Tensor, " test"]:
    """Which test images have their label among the predictions: one for each, or a row of them."""
    return (predicted.reshape(len(predicted), -1) == labels.unsqueeze(1)).any(1)


def _best(case: Case, logits: Float[Tensor, "test classes"], key: str, words: str) -> Found:
    """Top-1; with many classes, top-5 too."""
    found = {key: case.accuracy(hits(logits.argmax(1), case.test_labels), words)}
    if case.classes >= MANY_CLASSES:
        five = hits(logits.topk(5).indices, case.test_labels)
        found[f"{key}_top5"] = case.accuracy(five, "the same, one of the best five")
    return found


def _chosen(
    probe: Callable[..., Tensor], name: str, values: Sequence[float], case: Case, options: dict[str, int]
) -> Float[Tensor, "test classes"]:
    """The probe with that value which is best on a tenth of train, trained on all of it."""
    train, labels = case.train, case.train_labels
    best = values[0]
    if len(values) > 1:
        held = torch.zeros(len(train), dtype=torch.bool, device=train.device)
        held[torch.from_numpy(draw(labels.cpu().numpy(), max(1, len(labels) // 10), case.config.seed))] = True
        seen = (train[~held], labels[~held], train[held])
        logits = probe(*seen, classes=case.classes, **{name: values}, **options)
        right = (logits.argmax(2) == labels[held]).double().mean(1)
        best = values[int(right.argmax())]  # the first of equals
    found: Tensor = probe(train, labels, case.test, classes=case.classes, **{name: (best,)}, **options)[0]
    return found


def _of(values: Sequence[float]) -> str:
    """How many settings there were to choose from."""
    return f", best of {len(values)} on a tenth of train" if len(values) > 1 else ""
