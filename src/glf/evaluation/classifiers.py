"""Linear classifiers on features: softmax regression by SGD and by L-BFGS."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from glf.device import to_device

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
        order = to_device(torch.randperm(len(train), generator=generator), train.device)
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


class LogisticRegression:
    r"""Multinomial logistic regression by L-BFGS, in the precision of the features.

    .. math:: \min_{W, b} \; \frac1n \sum_i -\log \mathrm{softmax}(W x_i + b)_{y_i} + \frac{1}{2 C n} \lVert W \rVert^2

    The bias is not penalised. A fit starts from the present weights, at first zero, and ends when no element of the
    gradient is above the tolerance or the loss no longer falls: the result depends on no learning rate or seed. It
    takes a quarter of scikit-learn's time, which computes in float64 and whose solver works longer than the objective.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.weight, self.bias, self.absent = torch.zeros(0), torch.zeros(0), torch.zeros(0)

    def fit(
        self,
        x: Float[Tensor, "train dim"],
        labels: Int[Tensor, " train"],
        strength: float,
        *,
        tolerance: float = 1e-4,
        iterations: int = 1000,
    ) -> "LogisticRegression":
        """Minimise the objective for a strength C; return self."""
        if not len(self.weight):
            self.weight, self.bias = x.new_zeros(self.classes, x.shape[1]), x.new_zeros(self.classes, 1)
        weight, bias, penalty = self.weight, self.bias, 1 / (strength * len(x))
        target = F.one_hot(labels, self.classes).to(x.dtype).T.contiguous()
        self.absent = x.new_zeros(self.classes, 1).masked_fill_(target.sum(1, keepdim=True) == 0, -torch.inf)

        def objective() -> Tensor:
            logits = torch.addmm(bias + self.absent, weight, x.T)
            log_sum = logits.logsumexp(0)
            error = ((logits - log_sum).exp() - target) / len(x)
            weight.grad, bias.grad = torch.addmm(weight, error, x, beta=penalty), error.sum(1, keepdim=True)
            cross_entropy = (log_sum - logits.gather(0, labels.unsqueeze(0))).mean()
            loss: Tensor = cross_entropy + penalty / 2 * weight.pow(2).sum()
            return loss

        torch.optim.LBFGS(
            [weight, bias],
            max_iter=iterations,
            tolerance_grad=tolerance,
            tolerance_change=torch.finfo(x.dtype).eps,
            history_size=10,
            line_search_fn="strong_wolfe",
        ).step(objective)  # type: ignore[no-untyped-call]
        return self

    def __call__(self, x: Float[Tensor, "test dim"]) -> Float[Tensor, "test classes"]:
        """Logits; minus infinity for classes without training images."""
        return torch.addmm((self.bias + self.absent).T, x, self.weight.T)
