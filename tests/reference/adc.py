"""Kernels, neighbour distributions, DCM, LPM and ADC, in both readings of the paper."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.terms import Matrix, Vector, covariance_matrix, dot, mean, others, table, unit

READINGS = ("calibrated", "paper")
KINDS = (  # each reading, with each covariance that it allows
    ("calibrated", "sphere"),
    ("calibrated", "batch"),
    ("calibrated", "running"),
    ("paper", "batch"),
    ("paper", "running"),
)


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


def log_distributions(kernel: Matrix, with_anchor: bool = False) -> Tensor:
    rows, n = [], len(kernel)
    for i in range(n):
        members = range(n) if with_anchor else others(i, n)
        total = sum(kernel[i][j].exp() for j in members)
        rows.append([(kernel[i][j].exp() / total).log() for j in others(i, n)])
    return table(rows)


def entropy(log_p: Matrix) -> Tensor:
    return torch.stack([-sum(p.exp() * p for p in row) for row in log_p])


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


def lpm(log_dat: Tensor, log_pre: Tensor, reading: str) -> Tensor:
    views, n = len(log_dat), len(log_pre)
    total = 0
    for v in range(views):
        for i in range(n):
            if reading == "calibrated":
                density = sum(a.exp() * b for a, b in zip(log_pre[i], log_dat[v][i], strict=True))
            else:  # log Dir(beta | alpha), with floors on both
                alpha = [a.exp().clamp_min(1e-8) for a in log_pre[i]]
                density = sum(alpha).lgamma() - sum(a.lgamma() for a in alpha)
                for a, b in zip(alpha, log_dat[v][i], strict=True):
                    density = density + (a - 1) * b.clamp_min(math.log(1e-8))
            total = total - density
    return total / views / (n if reading == "calibrated" else 1)


def bandwidth(distances: Vector, log_kernel: Callable[[Tensor], Tensor], perplexity: float) -> float:
    """The factor of one anchor's distances to its neighbours that gives its distribution this perplexity."""
    low, high = 1e-9, 1e9
    for _ in range(200):
        middle = math.sqrt(low * high)
        kernel = [log_kernel(middle * d).exp() for d in distances]
        p = [k / sum(kernel) for k in kernel]
        wide = math.exp(-sum(float(x) * math.log(max(float(x), 1e-300)) for x in p)) > perplexity
        low, high = (middle, high) if wide else (low, middle)
    return middle


def scaled_by_perplexity(
    distances: Matrix, log_kernel: Callable[[Tensor], Tensor], perplexity: float
) -> tuple[Tensor, list[float]]:
    """Each anchor's distances, times its bandwidth; and the bandwidths."""
    n, rows, factors = len(distances), [], []
    for i in range(n):
        s = bandwidth([distances[i][j] for j in others(i, n)], log_kernel, perplexity)
        rows.append([s * distances[i][j] for j in range(n)])
        factors.append(s)
    return table(rows), factors


def centres(u: Matrix, log_p: Matrix) -> Tensor:
    found = []
    for i in range(len(u)):
        mean_of_others = [0.0] * len(u[i])
        for j, p in zip(others(i, len(u)), log_p[i], strict=True):
            mean_of_others = [m + p.exp() * x for m, x in zip(mean_of_others, u[j], strict=True)]
        found.append(unit([x / 2 + m / 2 for x, m in zip(u[i], mean_of_others, strict=True)]))
    return table(found)


@dataclass(frozen=True, kw_only=True)
class Adc:
    """DCM, LPM and ADC from embeddings to the scalar, in either reading of the paper."""

    rho: float = 5.0
    effective_dim: float = 8.0
    prior_effective_dim: float = 16.0
    t_scale: str = "printed"
    reading: str = "calibrated"
    covariance: str = "sphere"
    running: Tensor | None = None  # the average so far; None before the first batch
    target: str = "own"
    perplexity: float = 10.0
    prior_power: float = 1.0
    prior_perplexity: float | None = None

    def embedded(self, z: Tensor) -> Tensor:
        return torch.stack([table(unit(x) for x in view) for view in z]) if self.calibrated else z

    @property
    def calibrated(self) -> bool:
        return self.reading == "calibrated"

    def average(self, held: Tensor) -> Tensor:
        now = covariance_matrix([x for view in self.embedded(held) for x in view])
        return now if self.running is None else 0.99 * self.running + 0.01 * now

    def distances(self, z: Tensor, held: Tensor) -> list[Tensor]:
        """D_ij per view; in the paper's reading the covariance is that of the fixed ``held``."""
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

        return log_distributions(entrywise(kernel, distances), with_anchor=not self.calibrated)

    def cal(self, held: Tensor) -> Tensor:
        kernels = [entrywise(log_gaussian, d) for d in self.distances(held, held)]
        return torch.stack([log_distributions(kernel, with_anchor=not self.calibrated) for kernel in kernels])

    def dat(self, z: Tensor, held: Tensor) -> Tensor:
        dim = self.effective_dim if self.calibrated else z.shape[-1]
        return torch.stack([self.student(d, dim) for d in self.distances(z, held)])

    def pre(self, prior: Tensor) -> Tensor:
        sigma, width = covariance_matrix(prior), prior.shape[-1]
        if not self.calibrated:
            return self.student(mahalanobis(prior, ridged(sigma)), width)
        scale = mean(sigma[a][a] for a in range(width))
        distances = squared_distances(prior) / scale * self.prior_effective_dim / width
        if self.prior_perplexity is not None:
            distances = scaled_by_perplexity(distances, self.prior_kernel, self.prior_perplexity)[0]
        return self.student(distances, self.prior_effective_dim)

    def prior_kernel(self, distance: Tensor) -> Tensor:
        return log_student(scale_for_student(distance, self.rho, self.t_scale), self.rho, self.prior_effective_dim)

    def target_of(self, held: Tensor, clean: Tensor | None, prior: Tensor | None) -> Tensor:
        """The target that dat is moved towards, per view."""
        if self.target == "own":
            return self.cal(held)
        if self.target == "prior":
            own, pre, views = self.cal(held), self.pre(prior), []
            for view in own:
                products = [
                    [p.exp() * q.exp() ** self.prior_power for p, q in zip(*rows, strict=True)]
                    for rows in zip(view, pre, strict=True)
                ]
                views.append(table([(x / sum(row)).log() for x in row] for row in products))
            return torch.stack(views)
        u = table(unit(x) for x in clean)
        log_p = self.clean_distributions(u)
        if self.target == "centre":
            log_p = self.clean_distributions(centres(u, log_p))
        return torch.stack([log_p for _ in held])

    def clean_distributions(self, u: Tensor) -> Tensor:
        distances, _ = scaled_by_perplexity(squared_distances(u), log_gaussian, self.perplexity)
        return log_distributions(entrywise(log_gaussian, distances))

    def over_memory(self, z: Tensor, clean: Tensor, indices: Vector, entries: list[tuple[int, Vector]]) -> Tensor:
        """DCM with the target ``memory``, whose entries are pairs of an image's index and its unit embedding."""
        total = 0
        for view in z:
            for i, x in enumerate(view):
                kept = [v for index, v in entries if index != int(indices[i])]
                far = [sum((a - b) ** 2 for a, b in zip(unit(x), v, strict=True)) * self.effective_dim for v in kept]
                t = [
                    log_student(scale_for_student(d, self.rho, self.t_scale), self.rho, self.effective_dim) for d in far
                ]
                near = [sum((a - b) ** 2 for a, b in zip(unit(clean[i]), v, strict=True)) for v in kept]
                s = bandwidth(near, log_gaussian, self.perplexity)
                g = [log_gaussian(s * d).exp() for d in near]
                for a, b in zip(g, t, strict=True):
                    p = a / sum(g)
                    total = total + p * (p.log() - (b.exp() / sum(x.exp() for x in t)).log())
        return total / len(z) / len(z[0])

    def dcm(self, z: Tensor, prior: Tensor | None = None, clean: Tensor | None = None, weighted: bool = True) -> Tensor:
        """Unweighted; with a prior, the entropies of its distributions weight the anchors."""
        prior = None if prior is None else prior.detach()
        weight = outlier_weight(self.pre(prior), self.reading) if prior is not None and weighted else None
        target = self.target_of(z.detach(), None if clean is None else clean.detach(), prior)
        return dcm(target, self.dat(z, z.detach()), weight, self.reading)

    def lpm(self, z: Tensor, prior: Tensor) -> Tensor:
        return lpm(self.dat(z, z.detach()), self.pre(prior.detach()), self.reading)

    def adc(self, z: Tensor, prior: Tensor, clean: Tensor | None = None, *, nu: float, upsilon: float) -> Tensor:
        return nu * self.dcm(z, prior, clean) + upsilon * self.lpm(z, prior)


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
