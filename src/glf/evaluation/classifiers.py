"""Linear classifiers on features: softmax regression by SGD and by L-BFGS."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

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

    The gradient of the mean cross-entropy is explicit: :math:`(\mathrm{softmax}(W X^T + b) - Y)\, X / n`. A row of
    :math:`W` is a class: with few classes these products take a fifth of the time of those with classes as columns.
    The classifiers of all learning rates are the rows of one :math:`W`: they see the same batches, in one product.
    ``advance`` is called after each epoch.
    """
    scaler = FeatureScaler(train)
    fits = train.nbytes <= STANDARDISED_AT_ONCE
    x = scaler(train) if fits else train
    count = len(lrs)
    onehot = F.one_hot(labels, classes).to(train.dtype)
    weight, bias = train.new_zeros(count * classes, train.shape[1]), train.new_zeros(count * classes, 1)
    velocity, bias_velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    initial_lr = torch.tensor(list(lrs), dtype=train.dtype, device=train.device).repeat_interleave(classes).unsqueeze(1)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        lr = initial_lr * decay ** (epoch / max(1, epochs - 1))
        order = torch.randperm(len(train), generator=generator).to(train.device)
        for indices in torch.split(order, batch_size):
            batch = x.index_select(0, indices)
            batch = batch if fits else scaler(batch)
            logits = torch.addmm(bias, weight, batch.T).view(count, classes, -1)
            error = ((logits.softmax(1) - onehot.index_select(0, indices).T) / len(indices)).flatten(0, 1)
            velocity.mul_(momentum).add_(torch.addmm(weight, error, batch, beta=weight_decay))
            bias_velocity.mul_(momentum).add_(error.sum(1, keepdim=True)).add_(bias, alpha=weight_decay)
            weight.sub_(velocity * lr)
            bias.sub_(bias_velocity * lr)
        advance()
    blocks = [torch.addmm(bias.T, scaler(block), weight.T) for block in torch.split(test, BLOCK)]
    return torch.cat(blocks).view(len(test), count, classes).transpose(0, 1)


def logistic_probe(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    strengths: Sequence[float] = (1.0,),
    *,
    classes: int,
    **options: Any,
) -> Iterator[Float[Tensor, "test {classes}"]]:
    """Logistic regression on standardised features; options are those of `logistic_regression`."""
    scaler = FeatureScaler(train)
    return logistic_regression(scaler(train), labels, scaler(test), strengths, classes=classes, **options)


def logistic_regression(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    strengths: Sequence[float] = (1.0,),
    *,
    classes: int,
    iterations: int = 1000,
    tolerance: float = 1e-4,
    advance: Callable[[], object] = lambda: None,
) -> Iterator[Float[Tensor, "test {classes}"]]:
    r"""Logits of the test features under multinomial logistic regression, for each inverse regularisation strength C.

    .. math:: \min_{W, b} \; \frac1n \sum_i -\log \mathrm{softmax}(W x_i + b)_{y_i} + \frac{1}{2 C n} \lVert W \rVert^2

    By L-BFGS, in the precision of the features, until no element of the gradient is above the tolerance or the loss no
    longer falls; the bias is not penalised. The result depends on no learning rate or seed. Each fit starts from the
    solution of the one before, and is made when its logits are asked for. A fit takes a quarter of scikit-learn's time,
    which computes in float64 and whose solver works longer than the objective. ``advance`` is called after each fit.
    """
    present = torch.unique(labels)  # the logits of classes without training images are minus infinity
    target = (labels == present.unsqueeze(1)).to(train.dtype)
    weight, bias = train.new_zeros(len(present), train.shape[1]), train.new_zeros(len(present), 1)
    for strength in strengths:
        penalty = 1 / (strength * len(train))

        def objective(penalty: float = penalty) -> Tensor:
            logits = torch.addmm(bias, weight, train.T)
            log_sum = logits.logsumexp(0)
            error = ((logits - log_sum).exp() - target) / len(train)
            weight.grad, bias.grad = torch.addmm(weight, error, train, beta=penalty), error.sum(1, keepdim=True)
            loss: Tensor = (log_sum - (logits * target).sum(0)).mean() + penalty / 2 * weight.pow(2).sum()
            return loss

        torch.optim.LBFGS(
            [weight, bias],
            max_iter=iterations,
            tolerance_grad=tolerance,
            tolerance_change=torch.finfo(train.dtype).eps,
            history_size=10,
            line_search_fn="strong_wolfe",
        ).step(objective)  # type: ignore[no-untyped-call]
        logits = train.new_full((len(test), classes), -torch.inf)
        logits[:, present] = torch.addmm(bias.T, test, weight.T)
        advance()
        yield logits
