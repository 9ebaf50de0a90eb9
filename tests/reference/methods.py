"""The methods' losses, as their authors print them. ``held`` arguments have no gradient."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from reference.terms import (
    Matrix,
    Vector,
    columns,
    cos,
    cosine,
    covariance,
    covariance_matrix,
    cross_correlation,
    diagonal,
    dot,
    mean,
    mse,
    others,
    redundancy,
    regression,
    standardise,
    table,
    unit,
    variance,
)


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


def dbscan(z: Matrix, radius: float, neighbours: int) -> list[int]:
    """Clusters of Ester et al. 1996 in the order of their first core point; -1 for noise."""
    n = len(z)
    near = [[j for j in range(n) if float(dot(z[i] - z[j], z[i] - z[j])) ** 0.5 <= radius] for i in range(n)]
    label, clusters = [-1] * n, 0
    for start in range(n):
        if label[start] != -1 or len(near[start]) < neighbours:
            continue
        reached = [start]
        while reached:
            i = reached.pop()
            if label[i] == -1:
                label[i] = clusters
                reached += near[i] if len(near[i]) >= neighbours else []
        clusters += 1
    return label


def fifth_neighbour_radius(z: Matrix) -> float:
    """Twice the (lower) median distance to the fifth neighbour."""
    fifth = sorted(sorted(float(dot(x - y, x - y)) ** 0.5 for y in z)[5] for x in z)
    return 2 * fifth[(len(fifth) - 1) // 2]


def isotropic_mixture(z: Matrix, noise: Matrix) -> Tensor:
    """Law (e) of the paper's Figure 1: for every image the mean of its cluster plus standard normal noise."""
    label, rows, drawn = dbscan(z, fifth_neighbour_radius(z), 5), [], iter(noise)
    for one in sorted(set(label)):
        members = [x for x, found in zip(z, label, strict=True) if found == one]
        centre = [mean(column) for column in columns(members)]
        rows += [[a + b for a, b in zip(centre, next(drawn), strict=True)] for _ in members]
    return table(rows)


def dino(z: Tensor, held: Tensor, prototypes: Tensor, fixed: Tensor, centre: Vector, *temperatures: float) -> Tensor:
    """H(P_t(x), P_s(x')) of both pairs of views, P_t centred and sharpened; temperatures of student and teacher."""
    student, teacher = temperatures
    losses = []
    for v, w in ((0, 1), (1, 0)):
        for x, t in zip(z[v], held[w], strict=True):
            target = softmax([(cos(t, c) - m) / teacher for c, m in zip(fixed, centre, strict=True)])
            losses.append(cross_entropy(target, softmax([cos(x, c) / student for c in prototypes])))
    return mean(losses)


def nearest(x: Vector, queue: Matrix) -> Vector:
    return max(queue, key=lambda entry: float(cos(x, entry)))


def nnclr(held: Tensor, p: Tensor, queue: Matrix, temperature: float) -> Tensor:
    """-log(exp(NN(z_i, Q) p_i / t) / sum_k exp(NN(z_i, Q) p_k / t)), z of either view and p of the other."""
    losses = []
    for v, w in ((0, 1), (1, 0)):
        for i, x in enumerate(held[w]):
            neighbour = nearest(x, queue)
            losses.append(-softmax([cos(neighbour, y) / temperature for y in p[v]])[i].log())
    return mean(losses)


def epps_pulley(x: Matrix, knots: int = 17, bound: float = 3.0) -> Tensor:
    """The trapezoid rule from -T to T, knot by knot."""
    n, values, step = len(x), [], bound / (knots - 1)
    for column in columns(x):
        total = 0
        for k in range(1 - knots, knots):
            t, gaussian = k * step, math.exp(-((k * step) ** 2) / 2)
            real = mean((t * a).cos() for a in column) - gaussian
            imaginary = mean((t * a).sin() for a in column)
            total = total + (real**2 + imaginary**2) * gaussian * step * (0.5 if abs(k) == knots - 1 else 1)
        values.append(n * total)
    return mean(values)


def centre(z: Sequence[Matrix] | Tensor, full: int | None = None) -> Tensor:
    """The mean over the first views, image by image."""
    views = list(z)[:full]
    return table([mean(view[i][a] for view in views) for a in range(len(z[0][i]))] for i in range(len(z[0])))


def lejepa(z: Tensor, directions: Tensor, share: float, full: int | None = None) -> Tensor:
    """(1 - lambda) mean squared distance to the centre of the full-size views + lambda SIGReg."""
    middle = centre(z, full)
    projected = [[[dot(x, w) for w in columns(directions)] for x in view] for view in z]
    return (1 - share) * mean(mse(view, middle) for view in z) + share * mean(epps_pulley(view) for view in projected)


def coding_rate(z: Matrix, epsilon: float) -> Tensor:
    """-1/2 log det(I + d / (n epsilon) Z^T Z)."""
    n, d, units = len(z), len(z[0]), columns(z)
    gram = [[d / (n * epsilon) * dot(x, y) + (i == j) for j, y in enumerate(units)] for i, x in enumerate(units)]
    factor = cholesky(gram)
    return -sum(factor[i][i].log() for i in range(d))


def emp(z: Tensor, invariance: float, epsilon: float) -> Tensor:
    views = [[unit(x) for x in view] for view in z]
    middle = centre(views)
    return mean(invariance * cosine(view, middle) + coding_rate(view, epsilon) for view in views)


def tico(z: Tensor, held: Tensor, earlier: Sequence[Matrix] | None, rho: float, old: float) -> Tensor:
    """1 - mean cos + rho mean z^T C z, C = old C + (1 - old) Z^T Z / n; either view, each with a C of its own."""
    losses = []
    for v, w in ((0, 1), (1, 0)):
        views = [unit(x) for x in z[v]]
        fixed = columns([[a.detach() for a in x] for x in views])
        n, d = len(views), len(fixed)
        c = [[(1 - old) * dot(fixed[i], fixed[j]) / n for j in range(d)] for i in range(d)]
        if earlier is not None:
            c = [[c[i][j] + old * earlier[v][i][j] for j in range(d)] for i in range(d)]
        energy = mean(sum(x[i] * c[i][j] * x[j] for i in range(d) for j in range(d)) for x in views)
        losses.append(1 + cosine(z[v], held[w]) + rho * energy)
    return mean(losses)


def diet(scores: Tensor, own: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy with label smoothing: the target is (1 - smoothing) one-hot + smoothing / m."""
    losses = []
    for view in scores:
        for row, i in zip(view, own, strict=True):
            p, m = softmax(row), len(row)
            target = [(1 - smoothing) * (j == int(i)) + smoothing / m for j in range(m)]
            losses.append(cross_entropy(target, p))
    return mean(losses)


def vcreg(h: Tensor, scores: Tensor, target: Tensor, alpha: float, beta: float) -> Tensor:
    return supervised(scores, target) + mean(alpha * variance(x) + beta * covariance(x) for x in h)
