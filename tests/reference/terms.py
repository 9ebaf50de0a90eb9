"""Helpers for loops over samples, and the terms that several methods share."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Vector = Sequence[Tensor] | Tensor
Matrix = Sequence[Vector] | Tensor


def dot(x: Vector, y: Vector) -> Any:
    return sum(a * b for a, b in zip(x, y, strict=True))


def unit(x: Vector) -> list[Tensor]:
    length = dot(x, x).sqrt()
    return [a / length for a in x]


def cos(x: Vector, y: Vector) -> Tensor:
    return dot(unit(x), unit(y))


def mean(values: Iterable[Any]) -> Any:
    values = list(values)
    return sum(values) / len(values)


def table(rows: Iterable[Iterable[Tensor]]) -> Tensor:
    return torch.stack([torch.stack(list(row)) for row in rows])


def columns(z: Matrix) -> list[list[Tensor]]:
    return [[row[a] for row in z] for a in range(len(z[0]))]


def others(i: int, n: int) -> list[int]:
    return [j for j in range(n) if j != i]


def mse(z0: Matrix, z1: Matrix) -> Tensor:
    return mean((a - b) ** 2 for x, y in zip(z0, z1, strict=True) for a, b in zip(x, y, strict=True))


def cosine(z0: Matrix, z1: Matrix, temperature: float = 1.0) -> Tensor:
    return -mean(cos(x, y) / temperature for x, y in zip(z0, z1, strict=True))


def regression(prediction: Matrix, target: Matrix) -> Tensor:
    total = 0
    for x, y in zip(prediction, target, strict=True):
        total = total + sum((a - b) ** 2 for a, b in zip(unit(x), unit(y), strict=True))
    return total / len(prediction)


def cross_correlation(z0: Matrix, z1: Matrix) -> Tensor:
    return table([dot(x, y) / len(z0) for y in columns(z1)] for x in columns(z0))


def diagonal(correlation: Matrix) -> Tensor:
    return sum((1 - correlation[a][a]) ** 2 for a in range(len(correlation)))


def log_partition(z: Matrix, temperature: float) -> Tensor:
    n = len(z)
    return mean(sum((cos(z[a], z[b]) / temperature).exp() for b in others(a, n)).log() for a in range(n))


def covariance_matrix(z: Matrix) -> Tensor:
    centred = [[a - mean(column) for a in column] for column in columns(z)]
    return table([dot(x, y) / (len(z) - 1) for y in centred] for x in centred)


def variance(z: Matrix, floor: float = 1.0, epsilon: float = 1e-4) -> Tensor:
    hinges = []
    for column in columns(z):
        unbiased = sum((a - mean(column)) ** 2 for a in column) / (len(z) - 1)
        hinges.append(torch.relu(floor - (unbiased + epsilon).sqrt()))
    return mean(hinges)


def off_diagonal(matrix: Matrix) -> Tensor:
    return table([matrix[i][j] for j in others(i, len(matrix))] for i in range(len(matrix)))


def redundancy(correlation: Matrix) -> Tensor:
    n = len(correlation)
    nothing = 0 * correlation[0][0]
    return sum((correlation[a][b] ** 2 for a in range(n) for b in others(a, n)), start=nothing)


def covariance(z: Matrix) -> Tensor:
    return redundancy(covariance_matrix(z)) / len(z[0])


def standardise(z: Matrix, epsilon: float = 1e-5) -> Tensor:
    result = []
    for column in columns(z):
        biased = mean((a - mean(column)) ** 2 for a in column)
        result.append([(a - mean(column)) / (biased + epsilon).sqrt() for a in column])
    return table(columns(result))
