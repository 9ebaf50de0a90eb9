"""Distributions of anchors over entries, from kernels of two vectors; and their divergences."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reference.adc import bandwidth
from reference.methods import cross_entropy, softmax
from reference.terms import Matrix, Vector, cos, mean, unit

OfTwo = Callable[[Vector, Vector], Tensor]  # a kernel
Distributions = list[list[Tensor]]


def over(anchors: Matrix, entries: Matrix, kernel: OfTwo, same: Callable[[int, int], bool]) -> Distributions:
    """Each anchor's kernel values over their sum, 0 for the anchor itself."""
    found = []
    for i, x in enumerate(anchors):
        values = [0 * kernel(x, y) if same(i, j) else kernel(x, y) for j, y in enumerate(entries)]
        found.append([value / sum(values) for value in values])
    return found


def itself(i: int, j: int) -> bool:
    return i == j


def nobody(i: int, j: int) -> bool:
    return False


def cosine_kernel(temperature: float) -> OfTwo:
    return lambda x, y: (cos(x, y) / temperature).exp()


def distance(x: Vector, y: Vector) -> Tensor:
    return sum(((a - b) ** 2 for a, b in zip(x, y, strict=True)), start=0 * x[0])


def gaussian_kernel(scale: float, to: Callable[[Vector], Vector] = unit) -> OfTwo:
    return lambda x, y: (-scale * distance(to(x), to(y)) / 2).exp()


def student_kernel(rho: float, dim: float, scale: float, to: Callable[[Vector], Vector] = unit) -> OfTwo:
    return lambda x, y: (1 + scale * distance(to(x), to(y)) / rho) ** (-(rho + dim) / 2)


def as_it_is(x: Vector) -> Vector:
    return x


def standard(entries: Tensor) -> Callable[[Vector], Vector]:
    """Coordinates in units of the mean variance of the entries over their number of dimensions."""
    n, d = entries.shape
    centre = [mean(entries[:, k]) for k in range(d)]
    variance = sum(sum((entries[i, k] - centre[k]) ** 2 for i in range(n)) / (n - 1) for k in range(d))
    return lambda x: [(a - c) / variance.sqrt() for a, c in zip(x, centre, strict=True)]


def gaussian_with_perplexity(points: Tensor, perplexity: float) -> Distributions:
    """Gaussian distributions of each point over the others, each with the bandwidth of that perplexity."""
    found = []
    for i, x in enumerate(points):
        rest = [j for j in range(len(points)) if j != i]
        row = torch.stack([distance(x, points[j]) for j in rest])
        s = bandwidth(row, lambda d: -d / 2, perplexity)
        values = dict(zip(rest, softmax([-s * d / 2 for d in row]), strict=True))
        found.append([values.get(j, 0 * x[0]) for j in range(len(points))])
    return found


def equally_among(chosen: Callable[[int, int], bool], n: int) -> Distributions:
    """Equal probabilities for the chosen pairs."""
    found = []
    for i in range(n):
        members = [j for j in range(n) if chosen(i, j)]
        found.append([torch.tensor((j in members) / max(len(members), 1), dtype=torch.float64) for j in range(n)])
    return found


def _log(p: Tensor, q: Tensor) -> Tensor:
    """p log q, which is 0 for p = 0."""
    return p * q.log() if float(p.detach()) > 0 else 0 * p


def kl_of(p: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    return sum((_log(a, a / b) for a, b in zip(p, q, strict=True) if float(b.detach()) > 0), start=0 * q[0])


def reverse_of(p: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    return kl_of(q, [a.clamp_min(1e-8) for a in p])


def js_of(p: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (kl_of(p, m) + kl_of(q, m)) / 2


def tv_of(p: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    return sum(((a - b).abs() for a, b in zip(p, q, strict=True)), start=0 * q[0]) / 2


DIVERGENCES_OF = {"kl": kl_of, "reverse": reverse_of, "js": js_of, "tv": tv_of}


def relate(p: Distributions, q: Distributions, divergence: str = "kl") -> Tensor:
    """The mean over anchors; the target is held fixed."""
    held = [[a.detach() for a in row] for row in p]
    return mean(DIVERGENCES_OF[divergence](a, b) for a, b in zip(held, q, strict=True))


def entropy_of(p: Distributions) -> Tensor:
    return mean(-sum((_log(a, a) for a in row), start=0 * row[0]) for row in p)


def t_simclr(z: Tensor, temperature: float, df: float) -> Tensor:
    """-log of the other view's share of the t kernel's sum over all other samples."""
    points, n = z.flatten(0, 1), z.shape[1]
    q = over(points, points, student_kernel(df, 1.0, 1 / temperature, as_it_is), itself)
    return mean(-q[a][(a + n) % (2 * n)].log() for a in range(2 * n))


def x_sample(z: Tensor, prior: Tensor, temperature: float, prior_temperature: float) -> Tensor:
    """Cross-entropy of the softmax of cosines of z under that of the prior's, over all other samples of two views."""
    points, of_prior = z.flatten(0, 1), prior.repeat(2, 1)
    p = over(of_prior, of_prior, cosine_kernel(prior_temperature), itself)
    q = over(points, points, cosine_kernel(temperature), itself)
    return relate(p, q) + entropy_of(p)


def distil(r: Tensor, prior: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """CE(softmax(t Q / tau), softmax(r Q / tau)): t the prior's features, Q those of the latest images."""
    losses = []
    for view in r:
        for mine, target in zip(view, prior, strict=True):
            p = softmax([cos(target, entry) / temperature for entry in queue])
            losses.append(cross_entropy(p, softmax([cos(mine, entry) / temperature for entry in queue])))
    return mean(losses)
