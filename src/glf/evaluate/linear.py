"""The paper's linear probe, on cached features."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def linear_probe(
    train: Float[Tensor, "train dim"],
    labels: Int[Tensor, " train"],
    test: Float[Tensor, "test dim"],
    *,
    classes: int,
    epochs: int = 500,
    batch_size: int = 1000,
    lr: tuple[float, float] = (1e-2, 1e-6),
    momentum: float = 0.9,
    weight_decay: float = 5e-6,
    seed: int = 0,
) -> Float[Tensor, "test {classes}"]:
    r"""Logits of the test features under a linear classifier trained on the training features.

    Softmax regression by SGD with momentum 0.9 and weight decay 5e-6 over 500 epochs, the learning rate decaying
    exponentially from 1e-2 to 1e-6. Ours, where the paper is silent: batches of 1,000 and the exponential form
    (after Ermolov et al. 2021), zero initial weights, and features standardised with the training set's mean and
    standard deviation, so that pixels and networks of any scale are judged alike.

    The gradient of the mean cross-entropy is written out: :math:`X^T (\mathrm{softmax}(XW + b) - Y) / n`.
    """
    mean, deviation = train.mean(0), train.std(0).clamp_min(1e-6)
    x, queries = (train - mean) / deviation, (test - mean) / deviation
    onehot = F.one_hot(labels, classes).to(x.dtype)
    weight, bias = x.new_zeros(x.shape[1], classes), x.new_zeros(classes)
    speed, bias_speed = torch.zeros_like(weight), torch.zeros_like(bias)
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        rate = lr[0] * (lr[1] / lr[0]) ** (epoch / max(1, epochs - 1))
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for start in range(0, len(x), batch_size):
            rows = order[start : start + batch_size]
            batch = x[rows]
            error = (torch.addmm(bias, batch, weight).softmax(1) - onehot[rows]) / len(rows)
            speed.mul_(momentum).add_(torch.addmm(weight, batch.T, error, beta=weight_decay))
            bias_speed.mul_(momentum).add_(error.sum(0)).add_(bias, alpha=weight_decay)
            weight.sub_(speed, alpha=rate)
            bias.sub_(bias_speed, alpha=rate)
    return torch.addmm(bias, queries, weight)
