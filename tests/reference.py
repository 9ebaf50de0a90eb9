"""The papers' equations as nested loops over samples, sharing no code with glf.

Tensors come in only to be taken apart: every function works on their single entries, in float64, and autograd
differentiates it as it is written. What an equation holds fixed (sg) is an argument of its own.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


# --- align


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


# --- constrain: contrast and moments


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


# --- the methods' losses, as their authors print them


def nt_xent(z0: Matrix, z1: Matrix, temperature: float) -> Tensor:
    """SimCLR: the mean over 2n samples of -log(exp s(a, positive) / sum_{b != a} exp s(a, b))."""
    z, n = [*z0, *z1], len(z0)
    losses = []
    for a in range(2 * n):
        similarity = {b: (cos(z[a], z[b]) / temperature).exp() for b in others(a, 2 * n)}
        losses.append(-(similarity[(a + n) % (2 * n)] / sum(similarity.values())).log())
    return mean(losses)


def simsiam(p: Tensor, held: Tensor) -> Tensor:
    """D(p1, sg z2)/2 + D(p2, sg z1)/2, with D the negative cosine."""
    return cosine(p[0], held[1]) / 2 + cosine(p[1], held[0]) / 2


def byol(p: Tensor, held: Tensor) -> Tensor:
    """Both directions of the squared distance of unit vectors, summed."""
    return regression(p[0], held[1]) + regression(p[1], held[0])


def barlow_twins(z0: Matrix, z1: Matrix, weight: float) -> Tensor:
    """c = bn(z1).T @ bn(z2) / N; on_diag + lambd * off_diag."""
    c = cross_correlation(standardise(z0), standardise(z1))
    return diagonal(c) + weight * redundancy(c)


def vicreg(z0: Matrix, z1: Matrix, invariance: float, std: float, cov: float) -> Tensor:
    """sim_coeff * repr_loss + std_coeff * std_loss + cov_coeff * cov_loss."""
    std_loss = variance(z0) / 2 + variance(z1) / 2
    return invariance * mse(z0, z1) + std * std_loss + cov * (covariance(z0) + covariance(z1))


# --- constrain: kernels and ADC


def squared_distances(z: Matrix) -> Tensor:
    return table([sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for y in z] for x in z)


def entrywise(function: Callable[[Tensor], Tensor], matrix: Matrix) -> Tensor:
    return table([function(entry) for entry in row] for row in matrix)


def log_gaussian(distance: Tensor) -> Tensor:
    return -0.5 * distance


def log_student(distance: Tensor, rho: float, dim: float, divide: bool = True) -> Tensor:
    return (1 + distance / (rho if divide else 1)).pow(-(rho + dim) / 2).log()


def scale_for_student(distance: Tensor, rho: float, t_scale: str) -> Tensor:
    if t_scale == "printed":  # the scale matrix is rho Sigma / (rho - 2)
        return distance * (rho - 2) / rho
    if t_scale == "matched":  # the covariance is Sigma
        return distance * rho / (rho - 2)
    return distance  # the scale matrix is Sigma


def log_rows(kernel: Matrix, with_anchor: bool = False) -> Tensor:
    rows, n = [], len(kernel)
    for i in range(n):
        members = range(n) if with_anchor else others(i, n)
        total = sum(kernel[i][j].exp() for j in members)
        rows.append([(kernel[i][j].exp() / total).log() for j in others(i, n)])
    return table(rows)


def entropy(log_row: Matrix) -> Tensor:
    return torch.stack([-sum(p.exp() * p for p in row) for row in log_row])


def outlier_weight(log_pre: Matrix, reading: str) -> Tensor:
    h = entropy(log_pre)
    if reading == "paper":
        return torch.stack([1 / x.clamp_min(1e-8) for x in h])
    weights = [1 / x.clamp_min(0.1 * math.log(len(log_pre) - 1)) for x in h]
    return torch.stack([w / mean(weights) for w in weights])


def dcm(log_cal: Tensor, log_dat: Tensor, weight: Vector | None, reading: str) -> Tensor:
    views, n = len(log_cal), len(log_cal[0])
    total = 0
    for v in range(views):
        for i in range(n):
            divergence = sum(p.exp() * (p - q) for p, q in zip(log_cal[v][i], log_dat[v][i], strict=True))
            total = total + divergence * (1 if weight is None else weight[i])
    return total / views / (n if reading == "calibrated" else 1)


def lpm(log_dat: Tensor, log_pre: Tensor, concentration: float, reading: str) -> Tensor:
    views, n = len(log_dat), len(log_pre)
    total = 0
    for v in range(views):
        for i in range(n):
            if reading == "calibrated":
                density = concentration * sum(a.exp() * b for a, b in zip(log_pre[i], log_dat[v][i], strict=True))
            else:  # log Dir(beta | alpha), with floors on both
                alpha = [a.exp().clamp_min(1e-8) for a in log_pre[i]]
                density = sum(alpha).lgamma() - sum(a.lgamma() for a in alpha)
                for a, b in zip(alpha, log_dat[v][i], strict=True):
                    density = density + (a - 1) * b.clamp_min(math.log(1e-8))
            total = total - density
    return total / views / (n if reading == "calibrated" else 1)


@dataclass(frozen=True, kw_only=True)
class Adc:
    """DCM, LPM and ADC from embeddings to the scalar, in either reading of the paper."""

    rho: float = 5.0
    effective_dim: float = 16.0
    prior_effective_dim: float = 16.0
    t_scale: str = "printed"
    reading: str = "calibrated"
    covariance: str = "sphere"
    running: Tensor | None = None  # the average so far; the first batch starts it

    def embedded(self, z: Tensor) -> Tensor:
        return torch.stack([table(unit(x) for x in view) for view in z]) if self.calibrated else z

    @property
    def calibrated(self) -> bool:
        return self.reading == "calibrated"

    def average(self, held: Tensor) -> Tensor:
        now = covariance_matrix([x for view in self.embedded(held) for x in view])
        return now if self.running is None else 0.99 * self.running + 0.01 * now

    def distances(self, z: Tensor, held: Tensor) -> list[Tensor]:
        """D_ij per view; the paper's reading takes its covariance from what is held fixed."""
        k, result = z.shape[-1], []
        for view, fixed in zip(self.embedded(z), self.embedded(held), strict=True):
            if self.covariance == "sphere":
                sigma = torch.eye(k, dtype=z.dtype) / k
            elif self.covariance == "running":
                sigma = ridged(self.average(held))
            else:
                sigma = ridged(covariance_matrix(view if self.calibrated else fixed))
            result.append(mahalanobis(view, sigma) * (self.effective_dim / k if self.calibrated else 1))
        return result

    def student(self, distances: Tensor, dim: float) -> Tensor:
        def kernel(d: Tensor) -> Tensor:
            return log_student(scale_for_student(d, self.rho, self.t_scale), self.rho, dim, self.calibrated)

        return log_rows(entrywise(kernel, distances), with_anchor=not self.calibrated)

    def cal(self, held: Tensor) -> Tensor:
        kernels = [entrywise(log_gaussian, d) for d in self.distances(held, held)]
        return torch.stack([log_rows(kernel, with_anchor=not self.calibrated) for kernel in kernels])

    def dat(self, z: Tensor, held: Tensor) -> Tensor:
        dim = self.effective_dim if self.calibrated else z.shape[-1]
        return torch.stack([self.student(d, dim) for d in self.distances(z, held)])

    def pre(self, prior: Tensor) -> Tensor:
        sigma, width = covariance_matrix(prior), prior.shape[-1]
        if not self.calibrated:
            return self.student(mahalanobis(prior, ridged(sigma)), width)
        scale = mean(sigma[a][a] for a in range(width))
        distances = squared_distances(prior) / scale * self.prior_effective_dim / width
        return self.student(distances, self.prior_effective_dim)

    def dcm(self, z: Tensor, prior: Tensor | None = None) -> Tensor:
        """Unweighted; with a prior, its rows' entropies weigh the anchors."""
        weight = None if prior is None else outlier_weight(self.pre(prior.detach()), self.reading)
        return dcm(self.cal(z.detach()), self.dat(z, z.detach()), weight, self.reading)

    def lpm(self, z: Tensor, prior: Tensor, concentration: float = 1.0) -> Tensor:
        return lpm(self.dat(z, z.detach()), self.pre(prior.detach()), concentration, self.reading)

    def adc(self, z: Tensor, prior: Tensor, nu: float, upsilon: float, concentration: float) -> Tensor:
        return nu * self.dcm(z, prior) + upsilon * self.lpm(z, prior, concentration)


def mahalanobis(z: Matrix, sigma: Tensor) -> Tensor:
    precision, samples, rows = [list(line) for line in torch.linalg.inv(sigma)], [list(x) for x in z], []
    for x in samples:
        differences = [[a - b for a, b in zip(x, y, strict=True)] for y in samples]
        rows.append([dot(d, [dot(line, d) for line in precision]) for d in differences])
    return table(rows)


def ridged(sigma: Tensor) -> Tensor:
    k = len(sigma)
    trace = sum(sigma[a][a] for a in range(k))
    return sigma + 1e-4 * (trace / k).clamp_min(1e-6) * torch.eye(k, dtype=sigma.dtype)


# --- inputs, and comparisons with them


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_fields(*, views: int = 2, batch: int = 6, dim: int = 4, width: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Every field of Embeddings that a loss may read. Views are correlated, and none is centred or scaled."""
    image = draw(batch, dim, seed=seed)
    noise = draw(3, views, batch, dim, seed=seed + 1)
    z, p, teacher = 0.7 * (image + 0.5 * noise) + 0.3
    return {"z": z, "p": p, "teacher": teacher, "prior": draw(batch, width, seed=seed + 2)}


def same(ours: Callable[..., Tensor], loops: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Both give the same value and, for a fixed random cotangent, the same gradients; returns those of ours."""
    results = []
    for function in (ours, loops):
        leaves = [x.clone().requires_grad_() for x in inputs]
        value = function(*leaves)
        cotangent = draw(*value.shape, seed=7)
        gradients = torch.autograd.grad(value, leaves, cotangent, allow_unused=True)
        zeros = [torch.zeros_like(x) for x in inputs]
        results.append([value, *(z if g is None else g for g, z in zip(gradients, zeros, strict=True))])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    return results[0][1:]


def check(ours: Callable[..., Tensor], loops: Callable[..., Tensor], *inputs: Tensor) -> None:
    """A pure function: equal to its loops, gradients too, and to its own finite differences."""
    same(ours, loops, *inputs)
    assert torch.autograd.gradcheck(ours, [x.clone().requires_grad_() for x in inputs])
