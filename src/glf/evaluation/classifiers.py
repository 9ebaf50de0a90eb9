"""Linear classifiers on features: softmax regression by SGD and by L-BFGS."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

BLOCK = 2**16  # test features classified at a time
STANDARDISED_AT_ONCE = 2**30  # bytes of training features of which a standardised copy is made


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
    advance: Callable[[], object] = lambda: None,
) -> Float[Tensor, "lr test {classes}"]:
    r"""Logits of the test features under a linear classifier trained on the training features, for each learning rate.

    Softmax regression by SGD with momentum 0.9 and weight decay 5e-6 over 500 epochs; the learning rate decays
    exponentially from 1e-2 to 1e-6. Our choices where the paper is silent: batches of 1,000 and the exponential decay
    (after Ermolov et al. 2021), zero initial weights, and standardised features.

    The gradient of the mean cross-entropy is explicit: :math:`X^T (\mathrm{softmax}(XW + b) - Y) / n`. The classifiers
    of all learning rates are the columns of one :math:`W`: they see the same batches, in one matrix product.
    ``advance`` is called after each epoch.
    """
    scaler = FeatureScaler(train)
    fits = train.nbytes <= STANDARDISED_AT_ONCE
    x = scaler(train) if fits else train
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
            batch = x[indices] if fits else scaler(x[indices])
            logits = torch.addmm(bias, batch, weight).view(-1, count, classes)
            error = ((logits.softmax(2) - onehot[indices]) / len(indices)).flatten(1)
            velocity.mul_(momentum).add_(torch.addmm(weight, batch.T, error, beta=weight_decay))
            bias_velocity.mul_(momentum).add_(error.sum(0)).add_(bias, alpha=weight_decay)
            weight.sub_(velocity * lr)
            bias.sub_(bias_velocity * lr)
        advance()
    blocks = [torch.addmm(bias, scaler(block), weight) for block in torch.split(test, BLOCK)]
    return torch.cat(blocks).view(len(test), count, classes).transpose(0, 1)


def logistic_probe(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    strengths: Sequence[float] = (1.0,),
    *,
    classes: int,
    advance: Callable[[], object] = lambda: None,
) -> Float[Tensor, "strength test {classes}"]:
    """Logistic regression on standardised features."""
    scaler = FeatureScaler(train)
    return logistic_regression(scaler(train), labels, scaler(test), strengths, classes=classes, advance=advance)


def logistic_regression(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    strengths: Sequence[float] = (1.0,),
    *,
    classes: int,
    iterations: int = 1000,
    advance: Callable[[], object] = lambda: None,
) -> Float[Tensor, "strength test {classes}"]:
    r"""Logits of the test features under multinomial logistic regression, for each inverse regularisation strength C.

    .. math:: \min_{W, b} \; \frac1n \sum_i -\log \mathrm{softmax}(x_i W + b)_{y_i} + \frac{1}{2 C n} \lVert W \rVert^2

    By scikit-learn's L-BFGS, on the CPU, in the precision of the features; the bias is not penalised. The result
    depends on no learning rate, seed or stopping time. Each fit starts from the solution of the next smaller C.
    ``advance`` is called after each fit.
    """
    from sklearn.linear_model import LogisticRegression

    x, queries = (features.cpu().numpy() for features in (train, test))
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
        advance()
    return torch.stack([found[strength] for strength in strengths])
