"""Classifiers on frozen features: k-NN, linear probe, logistic probe. The values of k are in config/evaluation.py."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.config.evaluation import PAPER_KNN_K, SHOT_DRAWS, SHOTS
from glf.data.images import stratified_sample
from glf.evaluation.context import EvalContext, Metric
from glf.measure.knn import knn_predict, weighted_knn_predict
from glf.ui import say

BLOCK = 2**16  # test features classified at a time
MANY_CLASSES = 20  # from this number of classes on, top-5 accuracy is reported too

# Training features, their labels, test features, settings to try -> test logits for each setting.
Probe = Callable[[Tensor, Tensor, Tensor, Sequence[float]], Tensor]


class FeatureScaler:
    """Standardise features with the mean and standard deviation of the training features.

    It makes probes independent of the scale of the features, so that pixels and networks are treated alike.
    """

    def __init__(self, train: Float[Tensor, "train dim"]) -> None:
        self.mean, self.std = train.mean(0), train.std(0).clamp_min(1e-6)

    def __call__(self, features: Float[Tensor, "image dim"]) -> Float[Tensor, "image dim"]:
        return (features - self.mean) / self.std


def linear_probe(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    lrs: Sequence[float] = (1e-2,),
    *,
    classes: int,
    decay: float = 1e-4,
    epochs: int = 500,
    batch_size: int = 1000,
    momentum: float = 0.9,
    weight_decay: float = 5e-6,
    seed: int = 0,
) -> Float[Tensor, "lr test {classes}"]:
    r"""Logits of the test features under a linear classifier trained on the training features, for each learning rate.

    Softmax regression by SGD with momentum 0.9 and weight decay 5e-6 over 500 epochs; the learning rate decays
    exponentially from 1e-2 to 1e-6. Our choices where the paper is silent: batches of 1,000 and the exponential decay
    (after Ermolov et al. 2021), zero initial weights, and standardised features.

    The gradient of the mean cross-entropy is explicit: :math:`X^T (\mathrm{softmax}(XW + b) - Y) / n`. The classifiers
    of all learning rates are the columns of one :math:`W`: they see the same batches, in one matrix product.
    """
    scaler = FeatureScaler(train)
    count = len(lrs)
    onehot = F.one_hot(labels, classes).to(train.dtype).unsqueeze(1)
    weight, bias = train.new_zeros(train.shape[1], count * classes), train.new_zeros(count * classes)
    velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    initial_lr = torch.tensor(list(lrs), dtype=train.dtype, device=train.device).repeat_interleave(classes)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        lr = initial_lr * decay ** (epoch / max(1, epochs - 1))
        order = torch.randperm(len(train), generator=generator).to(train.device)
        for indices in torch.split(order, batch_size):
            batch = scaler(train[indices])  # not all features at once: a standardised copy might not fit in memory
            logits = torch.addmm(bias, batch, weight).view(-1, count, classes)
            error = ((logits.softmax(2) - onehot[indices]) / len(indices)).flatten(1)
            velocity.mul_(momentum).add_(torch.addmm(weight, batch.T, error, beta=weight_decay))
            bias_velocity.mul_(momentum).add_(error.sum(0)).add_(bias, alpha=weight_decay)
            weight.sub_(velocity * lr)
            bias.sub_(bias_velocity * lr)
    blocks = [torch.addmm(bias, scaler(block), weight) for block in torch.split(test, BLOCK)]
    return torch.cat(blocks).view(len(test), count, classes).transpose(0, 1)


def logistic_probe(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    strengths: Sequence[float] = (1.0,),
    *,
    classes: int,
    iterations: int = 1000,
) -> Float[Tensor, "strength test {classes}"]:
    r"""Logits of the test features under multinomial logistic regression, for each inverse regularisation strength C.

    .. math:: \min_{W, b} \; \frac1n \sum_i -\log \mathrm{softmax}(x_i W + b)_{y_i} + \frac{1}{2 C n} \lVert W \rVert^2

    By scikit-learn's L-BFGS, on the CPU and in float64, on standardised features; the bias is not penalised. The result
    depends on no learning rate, seed or stopping time. Each fit starts from the solution of the next smaller C.
    """
    from sklearn.linear_model import LogisticRegression

    scaler = FeatureScaler(train)
    x, queries = (scaler(features).double().cpu().numpy() for features in (train, test))
    y = labels.cpu().numpy()
    present = np.unique(y)  # the logits of classes without training images are minus infinity
    model = LogisticRegression(tol=1e-5, max_iter=iterations, warm_start=True)
    found = {}
    for strength in sorted(set(strengths)):
        logits = np.full((len(queries), classes), -np.inf)
        if len(present) == 1:
            logits[:, present] = 0
        elif len(present) == 2:  # scikit-learn fits w = w1 - w0; the penalty of w is twice that of w0 and w1 = -w0
            margin = model.set_params(C=2 * strength).fit(x, y).decision_function(queries)
            logits[:, present] = np.stack((-margin / 2, margin / 2), axis=1)
        else:
            logits[:, present] = model.set_params(C=strength).fit(x, y).decision_function(queries)
        found[strength] = torch.from_numpy(logits).to(train)
    return torch.stack([found[strength] for strength in strengths])


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
    probe = partial(linear_probe, classes=context.classes, epochs=config.probe_epochs, seed=config.seed)
    logits = _fit_best(context, probe, config.probe_lrs)
    chosen = _best_of(config.probe_lrs)
    return _top_1_and_5(context, logits, "linear", f"linear probe (SGD, {config.probe_epochs} epochs{chosen})")


def logistic(context: EvalContext) -> dict[str, Metric]:
    """Logistic regression by L-BFGS."""
    strengths = context.config.logistic_c
    logits = _fit_best(context, partial(logistic_probe, classes=context.classes), strengths)
    return _top_1_and_5(context, logits, "logistic", f"logistic probe (L-BFGS{_best_of(strengths)})")


def fewshot(context: EvalContext) -> dict[str, Metric]:
    """Nearest class mean of unit features from a few labels per class, averaged over draws."""
    train, test = (F.normalize(features, dim=1) for features in (context.train, context.test))
    labels = context.train_labels.cpu().numpy()
    metrics = {}
    for shots in SHOTS:
        if np.unique(labels, return_counts=True)[1].max() < shots:
            continue
        found = []
        for draw in range(SHOT_DRAWS):
            rows = torch.from_numpy(draw_shots(labels, shots, context.config.seed + draw)).to(train.device)
            predicted = nearest_class_mean(train[rows], context.train_labels[rows], test, context.classes)
            found.append(float((predicted == context.test_labels).double().mean()))
        protocol = f"{shots} label{'s' * (shots > 1)} per class (nearest class mean, {SHOT_DRAWS} draws)"
        spread = round(float(np.std(found, ddof=1)), 4)
        metrics[f"shots{shots}"] = Metric(round(float(np.mean(found)), 4), protocol, {"spread": spread}, percent=True)
    return metrics


def draw_shots(labels: np.ndarray, shots: int, seed: int) -> np.ndarray:
    """Indices of at most ``shots`` random images of each class.

    >>> labels = np.array([0, 0, 0, 1, 1, 1])
    >>> labels[draw_shots(labels, 2, seed=0)].tolist()
    [0, 0, 1, 1]
    """
    order = np.random.default_rng([seed, 11]).permutation(len(labels))
    chosen = [order[labels[order] == label][:shots] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen))


def nearest_class_mean(
    train: Float[Tensor, "train dim"], labels: Int[Tensor, " train"], test: Float[Tensor, "test dim"], classes: int
) -> Int[Tensor, " test"]:
    """Predict the class whose mean is most similar by cosine; classes without training images are never predicted."""
    sums = torch.zeros(classes, train.shape[1], dtype=train.dtype, device=train.device).index_add(0, labels, train)
    similarity = F.normalize(test, dim=1) @ F.normalize(sums, dim=1).T
    absent = torch.bincount(labels, minlength=classes) == 0
    return similarity.masked_fill(absent, -torch.inf).argmax(1)


def _fit_best(context: EvalContext, probe: Probe, settings: Sequence[float]) -> Float[Tensor, "test classes"]:
    """Test logits of the probe with the setting that is best on a held-out tenth of train, fitted to all of train."""
    train, labels, best = context.train, context.train_labels, settings[0]
    if len(settings) > 1:
        sample = stratified_sample(labels.cpu().numpy(), max(1, len(labels) // 10), context.config.seed)
        held_out = torch.zeros(len(train), dtype=torch.bool, device=train.device)
        held_out[torch.from_numpy(sample)] = True
        logits = probe(train[~held_out], labels[~held_out], train[held_out], settings)
        accuracies = (logits.argmax(2) == labels[held_out]).double().mean(1)
        best = settings[int(accuracies.argmax())]  # the first of equals
    return probe(train, labels, context.test, (best,))[0]


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
