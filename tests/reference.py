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


def moco(z: Tensor, held: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """-log(exp(q.k/t) / (exp(q.k/t) + sum_j exp(q.n_j/t))), each view the query once, the other view's queue."""
    losses = []
    for v, w in ((0, 1), (1, 0)):
        for query, key in zip(z[v], held[w], strict=True):
            positive = (cos(query, key) / temperature).exp()
            negatives = sum((cos(query, entry) / temperature).exp() for entry in queue[w])
            losses.append(-(positive / (positive + negatives)).log())
    return mean(losses)


def softmax(row: Sequence[Tensor]) -> list[Tensor]:
    total = sum(x.exp() for x in row)
    return [x.exp() / total for x in row]


def cross_entropy(p: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    return -sum(a * b.log() for a, b in zip(p, q, strict=True))


def ressl(z: Tensor, held: Tensor, queue: Tensor, temperature: float, sharp: float) -> Tensor:
    """CE(softmax(k U / sharp), softmax(q U / temperature)): q the first, strong view, k the last, weak one."""
    losses = []
    for query, key in zip(z[0], held[1], strict=True):
        target = softmax([cos(key, entry) / sharp for entry in queue[1]])
        losses.append(cross_entropy(target, softmax([cos(query, entry) / temperature for entry in queue[1]])))
    return mean(losses)


def sinkhorn(scores: Matrix, sharpness: float, rounds: int) -> list[list[Tensor]]:
    """As SwAV's code: a matrix (prototype, sample) whose rows and columns are divided by their sums in turn."""
    q = [[(x / sharpness).exp() for x in column] for column in columns(scores)]
    k, n = len(q), len(q[0])
    for _ in range(rounds):
        q = [[x / sum(row) / k for x in row] for row in q]
        sums = [sum(column) for column in columns(q)]
        q = [[x / total / n for x, total in zip(row, sums, strict=True)] for row in q]
    return [[x * n for x in column] for column in columns(q)]


def swav(z: Tensor, prototypes: Tensor, temperature: float, sharpness: float, rounds: int) -> Tensor:
    """-1/2 (q2 log p1 + q1 log p2), the codes held fixed."""
    held, fixed = z.detach(), prototypes.detach()
    codes = [sinkhorn([[cos(x, c) for c in fixed] for x in view], sharpness, rounds) for view in held]
    losses = []
    for v, w in ((0, 1), (1, 0)):
        for x, code in zip(z[v], codes[w], strict=True):
            losses.append(cross_entropy(code, softmax([cos(x, c) / temperature for c in prototypes])))
    return mean(losses)


def cholesky(a: Matrix) -> list[list[Tensor]]:
    n = len(a)
    factor: list[list[Any]] = [[0 * a[0][0]] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            rest = a[i][j] - sum(factor[i][k] * factor[j][k] for k in range(j))
            factor[i][j] = rest.sqrt() if i == j else rest / factor[j][j]
    return factor


def whiten(z: Matrix) -> Tensor:
    """Forward substitution with the Cholesky factor of the unbiased covariance."""
    factor, centre = cholesky(covariance_matrix(z)), [mean(column) for column in columns(z)]
    result = []
    for x in z:
        solved: list[Tensor] = []
        for i, row in enumerate(factor):
            rest = x[i] - centre[i] - sum((row[k] * solved[k] for k in range(i)), start=0 * x[i])
            solved.append(rest / row[i])
        result.append(solved)
    return table(result)


def wmse(z: Tensor) -> Tensor:
    """All pairs of views, each whitened: the mean of 2 - 2 cos."""
    views = [whiten(view) for view in z]
    pairs = [(v, w) for v in range(len(z)) for w in range(v)]
    return mean(regression(views[v], views[w]) for v, w in pairs)


def product(a: Matrix, b: Matrix) -> Tensor:
    return table([dot(row, column) for column in columns(b)] for row in a)


def trace(a: Matrix) -> Tensor:
    return sum(a[i][i] for i in range(len(a)))


def mec(p: Tensor, held: Tensor, distortion: float, order: int, slack: float = 1.0) -> Tensor:
    """As MEC's code: -Tr(sum_k (-1)^(k+1) (lambda P T^T)^k / k) / (m lambda), both directions averaged."""
    m, d = p.shape[1:]
    scale = d / (m * distortion * slack)
    losses = []
    for v, w in ((0, 1), (1, 0)):
        c = scale * table([cos(x, y) for y in held[w]] for x in p[v])
        power, total = c, trace(c)
        for k in range(2, order + 1):
            power = product(power, c)
            total = total + (-1) ** (k + 1) / k * trace(power)
        losses.append(-total / (m * scale))
    return mean(losses)


def corinfomax(z: Tensor, invariance: float, old: float) -> Tensor:
    """alpha MSE - (logdet R1 + logdet R2) / D at the first step: R starts as I, the mean as 0."""
    views = [[unit(x) for x in view] for view in z]
    d, n = len(views[0][0]), len(views[0])
    total = invariance * mse(*views)
    for view in views:
        centre = [(1 - old) * mean(column) for column in columns(view)]
        centred = columns([[a - c for a, c in zip(x, centre, strict=True)] for x in view])
        r = [[(1 - old) * dot(x, y) / n + (old if i == j else 0) + (1e-8 if i == j else 0)
              for j, y in enumerate(centred)] for i, x in enumerate(centred)]  # fmt: skip
        factor = cholesky(r)
        total = total - 2 * sum(factor[i][i].log() for i in range(d)) / d
    return total


def relicv2(z: Tensor, held: Tensor, temperature: float, weight: float) -> Tensor:
    """-log p(x_i; x_j) + beta KL(sg p || p), p over the batch of the other view's targets."""
    n, losses = len(z[0]), []
    p = {(v, w): [softmax([cos(x, t) / temperature for t in held[w]]) for x in z[v]] for v, w in ((0, 1), (1, 0))}
    for here, there in (((0, 1), (1, 0)), ((1, 0), (0, 1))):
        for i in range(n):
            losses.append(-p[here][i][i].log())
            first, second = [x.detach() for x in p[here][i]], p[there][i]
            losses[-1] = losses[-1] + weight * sum(a * (a.log() - b.log()) for a, b in zip(first, second, strict=True))
    return mean(losses)


def debiased(z0: Matrix, z1: Matrix, temperature: float, same: float, hardness: float = 0.0) -> Tensor:
    """DCL and HCL as their code: -log(pos / (pos + Ng))."""
    z, n = [*z0, *z1], len(z0)
    losses, count = [], 2 * n - 2
    for a in range(2 * n):
        positive = (cos(z[a], z[(a + n) % (2 * n)]) / temperature).exp()
        negatives = [(cos(z[a], z[b]) / temperature).exp() for b in range(2 * n) if b % n != a % n]
        importance = [x.log().mul(hardness).exp() for x in negatives]
        reweighed = dot(importance, negatives) / mean(importance)
        ng = ((reweighed - same * count * positive) / (1 - same)).clamp_min(count * math.exp(-1 / temperature))
        losses.append(-(positive / (positive + ng)).log())
    return mean(losses)


def polarisation(z: Matrix, near: float, far: float) -> Tensor:
    n, total = len(z), 0 * z[0][0]
    for a in range(n):
        for b in others(a, n):
            d = (1 - cos(z[a], z[b])) / 2
            total = total + ((d - near) * (d - far)).clamp_max(0).abs()
    return total / (n * (n - 1))


def unified(z: Tensor, sharpness: float) -> Tensor:
    """MetAug: log(1 + sum_n exp(g s_n) sum_p exp(-g s_p)), s = (1 + cos) / 2."""
    samples = [(i, x) for view in z for i, x in enumerate(view)]
    losses = []
    for a, (i, x) in enumerate(samples):
        s = {b: (1 + cos(x, y)) / 2 * sharpness for b, (_, y) in enumerate(samples) if b != a}
        near = sum((-s[b]).exp() for b in s if samples[b][0] == i)
        far = sum(s[b].exp() for b in s if samples[b][0] != i)
        losses.append((1 + near * far).log())
    return mean(losses)


def supcon(z: Tensor, target: Tensor, temperature: float) -> Tensor:
    """L_out: -1/|P| sum_p log(exp s_p / sum_{a != i} exp s_a)."""
    samples = [(int(t), x) for view in z for t, x in zip(target, view, strict=True)]
    losses = []
    for a, (label, x) in enumerate(samples):
        s = {b: cos(x, y) / temperature for b, (_, y) in enumerate(samples) if b != a}
        total = sum(value.exp() for value in s.values())
        losses.append(mean(-(s[b].exp() / total).log() for b in s if samples[b][0] == label))
    return mean(losses)


def supervised(scores: Tensor, target: Tensor) -> Tensor:
    rows = [(row, int(t)) for view in scores for row, t in zip(view, target, strict=True)]
    return mean(-softmax(row)[t].log() for row, t in rows)


def pcl(z: Tensor, indices: Tensor, centres: list[Tensor], phi: list[Tensor], assigned: Tensor) -> Tensor:
    """The prototypes' part: the mean over numbers of clusters of CE(q.c / phi, own cluster)."""
    losses = []
    for view in z:
        for kind, (c, p) in enumerate(zip(centres, phi, strict=True)):
            for x, r in zip(view, indices, strict=True):
                probabilities = softmax([cos(x, a) / b for a, b in zip(c, p, strict=True)])
                losses.append(-probabilities[int(assigned[kind, r])].log())
    return mean(losses)


def local_matches(a: Matrix, b: Matrix, at: Matrix, to: Matrix, count: int) -> list[tuple[Vector, Vector]]:
    """Cells of a, by the distance to the nearest of b, nearest first."""
    nearest = []
    for i, here in enumerate(at):
        distances = [float(sum((x - y) ** 2 for x, y in zip(here, there, strict=True))) for there in to]
        j = min(range(len(to)), key=distances.__getitem__)
        nearest.append((distances[j], i, j))
    return [(a[i], b[j]) for _, i, j in sorted(nearest)[:count]]


def vicregl(z: Tensor, maps: Tensor, where: Tensor, share: float, first: int, second: int) -> Tensor:
    """alpha (25 inv + 25 var + cov) of z plus (1 - alpha) of the same over sets of matches."""

    def criterion(x: Matrix, y: Matrix) -> Tensor:
        return 25 * mse(x, y) + 25 * (variance(x) + variance(y)) / 2 + (covariance(x) + covariance(y)) / 2

    local = 0
    for v, w, count in ((0, 1, first), (1, 0, first), (0, 1, second), (1, 0, second)):
        for at in (maps.detach(), where):
            images = [local_matches(maps[v][i], maps[w][i], at[v][i], at[w][i], count) for i in range(len(maps[v]))]
            sets = [
                ([pairs[m][0] for pairs in images], [pairs[m][1] for pairs in images]) for m in range(len(images[0]))
            ]
            local = local + mean(criterion(x, y) for x, y in sets) / 4
    return share * criterion(z[0], z[1]) + (1 - share) * local


def sliced_wasserstein(z: Matrix, target: Matrix, directions: Tensor) -> Tensor:
    total, slices = [], columns(directions)
    for w in slices:
        a = sorted((dot(x, w) for x in z), key=lambda x: float(x.detach()))
        b = sorted((dot(x, w) for x in target), key=float)
        total += [(x - y) ** 2 for x, y in zip(a, b, strict=True)]
    return mean(total)


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


@dataclass(frozen=True, kw_only=True)
class Adc:
    """DCM, LPM and ADC from embeddings to the scalar, in either reading of the paper."""

    rho: float = 5.0
    effective_dim: float = 8.0
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
        return self.student(distances, self.prior_effective_dim)

    def dcm(self, z: Tensor, prior: Tensor | None = None) -> Tensor:
        """Unweighted; with a prior, the entropies of its distributions weight the anchors."""
        weight = None if prior is None else outlier_weight(self.pre(prior.detach()), self.reading)
        return dcm(self.cal(z.detach()), self.dat(z, z.detach()), weight, self.reading)

    def lpm(self, z: Tensor, prior: Tensor) -> Tensor:
        return lpm(self.dat(z, z.detach()), self.pre(prior.detach()), self.reading)

    def adc(self, z: Tensor, prior: Tensor, nu: float, upsilon: float) -> Tensor:
        return nu * self.dcm(z, prior) + upsilon * self.lpm(z, prior)


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
    """Every field of Embeddings that a network gives. Views are correlated, and none is centred or scaled."""
    image = draw(batch, dim, seed=seed)
    noise = draw(4, views, batch, dim, seed=seed + 1)
    z, p, teacher, generated = 0.7 * (image + 0.5 * noise) + 0.3
    corners = torch.rand(views, batch, 4, generator=torch.Generator().manual_seed(seed + 3), dtype=torch.float64)
    return {
        "z": z,
        "h": draw(views, batch, dim + 1, seed=seed + 4),
        "p": p,
        "teacher": teacher,
        "generated": generated,
        "maps": draw(views, batch, 4, 3, seed=seed + 5),
        "boxes": corners,
        "scores": draw(views, batch, 3, seed=seed + 6),
        "target": torch.arange(batch) % 3,
        "indices": torch.arange(batch).flip(0),
        "prior": draw(batch, width, seed=seed + 2),
        "prototypes": draw(5, dim, seed=seed + 7),
    }


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
