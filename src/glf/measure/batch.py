"""Statistics of a training batch for `glf doctor`: geometry of z, and the first step that was not finite.

Everything stays on the device: nothing here waits for it, except ``NonFiniteTracker.steps``.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.types import Embeddings, Scalar

MAX_IMAGES = 512  # of a batch: enough for its statistics, and bounds the cost of a logged step
TWIN = 0.01  # of the mean squared distance: two images within a tenth of the usual distance count as one point
FAR = 0.25  # of the mean squared distance: two images beyond half of the usual distance are far apart
NO_STEP = 2**62


@torch.no_grad()
def embedding_statistics(e: Embeddings) -> dict[str, Tensor]:
    """Scale, spread, rank and clumping of z, and the share of prototypes in use, for a line of metrics.jsonl.

    The share is left out where the EMA teacher has prototypes of its own (DINO): nothing gives them equal shares there,
    and images in healthy runs share few of them.
    """
    z = e.z[0, :MAX_IMAGES].float()
    gram = centred_gram(F.normalize(z, dim=1))
    twins, between = clumping(gram)
    found = {"z/scale": scale(z), "z/spread": relative_spread(z), "z/twins": twins, "z/between": between}
    if len(z) >= 4:
        found["z/rank"] = participation(gram, z.shape[1])
    if e.prototypes is not None and e.teacher_prototypes is None:
        found["prototypes/used"] = prototypes_used(z, e.prototypes.float())
    return found


def scale(z: Float[Tensor, "sample dim"]) -> Scalar:
    """Root mean square of the entries.

    >>> float(scale(torch.tensor([[3.0, -3.0], [3.0, 3.0]])))
    3.0
    """
    return z.pow(2).mean().sqrt()


def relative_spread(z: Float[Tensor, "sample dim"]) -> Scalar:
    """Standard deviation of unit features relative to the uniform distribution: 1 is spread out, 0 is collapsed.

    >>> round(float(relative_spread(torch.tensor([[1.0, 0.0], [-5.0, 0.0], [0.0, 2.0], [0.0, -1.0]]))), 4)
    1.0
    """
    std: Tensor = F.normalize(z, dim=1).std(0, unbiased=False).mean()
    return std * math.sqrt(z.shape[1])


def centred_gram(z: Float[Tensor, "sample dim"]) -> Float[Tensor, "sample sample"]:
    """Inner products of the centred samples."""
    centred = z - z.mean(0)
    return centred @ centred.T


def participation(gram: Float[Tensor, "sample sample"], width: int) -> Scalar:
    r"""Effective rank (of order two) of the population's covariance, without the bias of a small sample.

    .. math:: (\mathrm{tr}\, C)^2 / \mathrm{tr}\, C^2

    Between 1 and the width. The spectrum of the sample itself has at most n - 1 values, so its rank depends more on n
    than on C where n is below the width. Numerator and denominator are therefore estimated without bias, for any
    distribution, from the centred Gram matrix of n >= 4 samples.

    Reference: Himeno and Yamada 2014, Estimations for some functions of covariance matrix in high dimension under
    non-normality, for both traces.
    Differs from the paper: the quotient is at most the width.

    >>> gram = centred_gram(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0], [-2.0, 0.0]]))
    >>> round(float(participation(gram, width=2)), 4)  # all on a line
    1.0
    """
    n = len(gram)
    power = gram.diagonal()
    trace = power.sum() / (n - 1)
    of_square = gram.pow(2).sum() / (n - 1) ** 2
    fourth = n * power.pow(2).sum() / (n - 1)
    factor = (n - 1) / (n * (n - 2) * (n - 3))
    squared_trace = factor * (2 * of_square + (n * n - 3 * n + 1) * trace.pow(2) - fourth)
    trace_of_square = factor * ((n - 1) * (n - 2) * of_square + trace.pow(2) - fourth)
    least = (squared_trace / width).clamp_min(torch.finfo(gram.dtype).tiny)
    return squared_trace / trace_of_square.clamp_min(least)


def clumping(gram: Float[Tensor, "sample sample"]) -> tuple[Scalar, Scalar]:
    """Share of samples with a twin, and share of pairs that are neither twins nor far apart.

    Embeddings that have collapsed to a few points have (1, 0); on a line both are above 0; a uniform cloud has (0, 0).

    >>> twins, between = clumping(centred_gram(torch.tensor([[0.0], [0.0], [1.0], [1.0]])))
    >>> float(twins), float(between)
    (1.0, 0.0)
    """
    n = len(gram)
    power = gram.diagonal()
    squares = power[:, None] + power - 2 * gram
    mean = 2 * power.sum() / (n - 1)
    self_ = torch.eye(n, dtype=torch.bool, device=gram.device)
    near = (squares <= TWIN * mean) & ~self_
    between = (squares > TWIN * mean) & (squares < FAR * mean) & ~self_
    return near.any(1).to(gram.dtype).mean(), between.sum() / (n * (n - 1))


def prototypes_used(z: Float[Tensor, "sample dim"], prototypes: Float[Tensor, "prototype dim"]) -> Scalar:
    r"""Number of prototypes nearest to some sample, relative to its expectation for uniform assignments.

    .. math:: \frac{\#\{\arg\max_k \cos(z_i, c_k)\}}{K (1 - (1 - 1/K)^n)}

    >>> round(float(prototypes_used(torch.tensor([[1.0, 0.0], [2.0, 0.1]]), torch.eye(2))), 4)  # 1, expected 1.5
    0.6667
    """
    nearest = (F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T).argmax(1)
    count = len(prototypes)
    hit = torch.zeros(count, device=z.device).scatter_(0, nearest, 1.0).sum()
    return hit / (count * (1 - (1 - 1 / count) ** len(z)))


class NonFiniteTracker:
    """First step at which each of several tensors was not finite.

    >>> tracker = NonFiniteTracker()
    >>> for step, value in enumerate((1.0, torch.inf, torch.nan)):
    ...     tracker.note(step, {"z": torch.ones(2, 2), "align/cosine": torch.tensor(value)})
    >>> tracker.steps()
    {'align/cosine': 1}
    """

    def __init__(self) -> None:
        self.first: dict[tuple[str, ...], Tensor] = {}

    def note(self, step: int, values: Mapping[str, Tensor]) -> None:
        """Check the tensors of this step, on the device. Pass the same names together at every step."""
        numbers = [value.detach().abs().amax() if value.ndim else value.detach() for value in values.values()]
        now = torch.where(torch.stack([number.float() for number in numbers]).isfinite(), NO_STEP, step)
        names = tuple(values)
        self.first[names] = torch.minimum(self.first[names], now) if names in self.first else now

    def steps(self) -> dict[str, int]:
        """First non-finite step of each tensor that had one. Waits for the device."""
        found = {n: s for names, first in self.first.items() for n, s in zip(names, first.tolist(), strict=True)}
        return {name: step for name, step in found.items() if step < NO_STEP}
