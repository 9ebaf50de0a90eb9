"""Linear classifiers on cached features: the paper's probe, and the logistic regression that it approaches."""
# MERGED DOCS:
# | """What features say about classes: neighbours and linear classifiers."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.data.images import stratified_sample
from glf.evaluation.context import EvalContext, Metric
from glf.measure.neighbours import nearest_neighbours, weighted_neighbours

ROWS = 2**16  # features that the logistic probe looks at together
HELD = 2**28  # numbers of which it keeps a standardised copy: 1 GB; more are standardised as they are looked at


class FeatureScaler:
    """With the training set's mean and standard deviation, so that pixels and networks of any scale are judged alike.

    Features are standardised as they are looked at: a copy of all of them might not fit in memory.
    """

    def __init__(self, train: Float[Tensor, "train dim"]) -> None:
        self.mean, self.deviation = train.mean(0), train.std(0).clamp_min(1e-6)

    def __call__(self, rows: Float[Tensor, "row dim"]) -> Float[Tensor, "row dim"]:
        return (rows - self.mean) / self.deviation


def linear_probe(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    *,
    classes: int,
    rates: Sequence[float] = (1e-2,),
    last: float = 1e-4,
    epochs: int = 500,
    batch_size: int = 1000,
    momentum: float = 0.9,
    weight_decay: float = 5e-6,
    seed: int = 0,
) -> Float[Tensor, "rate test {classes}"]:
    r"""Logits of the test features under a linear classifier trained on the training features, for each learning rate.

    Softmax regression by SGD with momentum 0.9 and weight decay 5e-6 over 500 epochs, the learning rate decaying
    exponentially from 1e-2 to 1e-6. Ours, where the paper is silent: batches of 1,000 and the exponential form
    (after Ermolov et al. 2021), zero initial weights, and standardised features.

    The gradient of the mean cross-entropy is written out: :math:`X^T (\mathrm{softmax}(XW + b) - Y) / n`. Classifiers
    for several rates stand side by side in :math:`W`: they see the same batches, in one product.
    """
    standardise = FeatureScaler(train)
    count = len(rates)
    onehot = F.one_hot(labels, classes).to(train.dtype).unsqueeze(1)
    weight, bias = train.new_zeros(train.shape[1], count * classes), train.new_zeros(count * classes)
    speed, bias_speed = torch.zeros_like(weight), torch.zeros_like(bias)
    start = torch.tensor(list(rates), dtype=train.dtype, device=train.device).repeat_interleave(classes)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        rate = start * last ** (epoch / max(1, epochs - 1))
        order = torch.randperm(len(train), generator=generator).to(train.device)
        for rows in torch.split(order, batch_size):
            batch = standardise(train[rows])
            scores = torch.addmm(bias, batch, weight).view(-1, count, classes)
            error = ((scores.softmax(2) - onehot[rows]) / len(rows)).flatten(1)
            speed.mul_(momentum).add_(torch.addmm(weight, batch.T, error, beta=weight_decay))
            bias_speed.mul_(momentum).add_(error.sum(0)).add_(bias, alpha=weight_decay)
            weight.sub_(speed * rate)
            bias.sub_(bias_speed * rate)
    parts = [torch.addmm(bias, standardise(part), weight) for part in torch.split(test, ROWS)]
    return torch.cat(parts).view(len(test), count, classes).transpose(0, 1)


def logistic_probe(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    *,
    classes: int,
    strengths: Sequence[float] = (1.0,),
    iterations: int = 1000,
) -> Float[Tensor, "strength test {classes}"]:
    r"""Logits of the test features under multinomial logistic regression, for each strength C.

    .. math:: \min_{W, b} \; \frac1n \sum_i -\log \mathrm{softmax}(x_i W + b)_{y_i} + \frac{1}{2 C n} \lVert W \rVert^2

    by L-BFGS over the whole training set: nothing is left to chance, to a learning rate or to a stopping time. C is
    scikit-learn's, features are standardised, and the bias is free. Strengths are solved from the smallest on, each
    from where the one before ended.
    """
    from scipy.optimize import minimize

    standardise = FeatureScaler(train)
    shape = (train.shape[1] + 1, classes)  # the last row is the bias
    found, solution = {}, np.zeros(shape[0] * shape[1])
    held = train.nelement() <= HELD
    seen = standardise(train) if held else train
    minus_one = train.new_full((ROWS, 1), -1)

    def split(flat: np.ndarray) -> tuple[Tensor, Tensor]:
        both = torch.from_numpy(flat.reshape(shape)).to(train)
        return both[:-1], both[-1]

    def objective(flat: np.ndarray, penalty: float) -> tuple[float, np.ndarray]:
        weight, bias = split(flat)
        total = 0.5 * penalty * float(weight.double().pow(2).sum())
        slope, bias_slope = penalty * weight, torch.zeros_like(bias)
        for x, y in zip(torch.split(seen, ROWS), torch.split(labels.unsqueeze(1), ROWS), strict=True):
            batch = x if held else standardise(x)
            scores = torch.addmm(bias, batch, weight).log_softmax(1)
            total -= float(scores.gather(1, y).double().sum()) / len(train)
            error = scores.exp().scatter_add_(1, y, minus_one[: len(y)]) / len(train)
            slope.addmm_(batch.T, error)
            bias_slope.add_(error.sum(0))
        return total, torch.cat([slope, bias_slope.unsqueeze(0)]).double().cpu().numpy().ravel()

    for strength in sorted(set(strengths)):
        penalty = 1 / (strength * len(train))
        options = {"maxiter": iterations, "gtol": 1e-5, "ftol": 1e-12}
        solution = minimize(objective, solution, (penalty,), "L-BFGS-B", jac=True, options=options).x
        weight, bias = split(solution)
        found[strength] = torch.cat([torch.addmm(bias, standardise(part), weight) for part in torch.split(test, ROWS)])
    return torch.stack([found[strength] for strength in strengths])


MANY_CLASSES = 20  # with fewer, to be among the best five says little
Metrics = dict[str, Metric]


def knn(case: EvalContext) -> Metrics:
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


def linear(case: EvalContext) -> Metrics:
    """The paper's linear probe."""
    config = case.config
    options = {"epochs": config.probe_epochs, "seed": config.seed}
    logits = _chosen(linear_probe, "rates", config.probe_lrs, case, options)
    return _best(case, logits, "linear", f"linear probe (SGD, {config.probe_epochs} epochs{_of(config.probe_lrs)})")


def logistic(case: EvalContext) -> Metrics:
    """Logistic regression by L-BFGS."""
    logits = _chosen(logistic_probe, "strengths", case.config.logistic_c, case, {})
    return _best(case, logits, "logistic", f"logistic probe (L-BFGS{_of(case.config.logistic_c)})")


def hits(predicted: Int[Tensor, "test *best"], labels: Int[Tensor, " test"]) -> Bool[Tensor, " test"]:
    """Which test images have their label among the predictions: one for each, or a row of them."""
    return (predicted.reshape(len(predicted), -1) == labels.unsqueeze(1)).any(1)


def _best(case: EvalContext, logits: Float[Tensor, "test classes"], key: str, words: str) -> Metrics:
    """Top-1; with many classes, top-5 too."""
    found = {key: case.accuracy(hits(logits.argmax(1), case.test_labels), words)}
    if case.classes >= MANY_CLASSES:
        five = hits(logits.topk(5).indices, case.test_labels)
        found[f"{key}_top5"] = case.accuracy(five, "the same, one of the best five")
    return found


def _chosen(
    probe: Callable[..., Tensor], name: str, values: Sequence[float], case: EvalContext, options: dict[str, int]
) -> Float[Tensor, "test classes"]:
    """The probe with that value which is best on a tenth of train, trained on all of it."""
    train, labels = case.train, case.train_labels
    best = values[0]
    if len(values) > 1:
        held = torch.zeros(len(train), dtype=torch.bool, device=train.device)
        held[torch.from_numpy(stratified_sample(labels.cpu().numpy(), max(1, len(labels) // 10), case.config.seed))] = (
            True
        )
        seen = (train[~held], labels[~held], train[held])
        logits = probe(*seen, classes=case.classes, **{name: values}, **options)
        right = (logits.argmax(2) == labels[held]).double().mean(1)
        best = values[int(right.argmax())]  # the first of equals
    found: Tensor = probe(train, labels, case.test, classes=case.classes, **{name: (best,)}, **options)[0]
    return found


def _of(values: Sequence[float]) -> str:
    """How many settings there were to choose from."""
    return f", best of {len(values)} on a tenth of train" if len(values) > 1 else ""
