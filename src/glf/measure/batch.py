"""The shape of a batch of embeddings while it trains: tensors in, tensors out, nothing waits for the device."""
# MERGED DOCS:
# | """Where training first was not finite: noted on the device at every step, read only when somebody asks."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.types import Embeddings, Scalar

IMAGES = 512  # of a batch are enough for its shape, and bound what a logged step costs
TWIN = 0.01  # of the mean squared distance: two images at a tenth of the usual distance are one point
FAR = 0.25  # likewise: from half of the usual distance on they are apart


@torch.no_grad()
def shape(e: Embeddings) -> dict[str, Tensor]:
    """What the doctor reads of a logged step: scale, spread, rank and clumping of z, and the prototypes in use."""
    z = e.z[0, :IMAGES].float()
    gram = centred_gram(F.normalize(z, dim=1))
    twins, between = clumping(gram)
    found = {"z/scale": scale(z), "z/spread": spread(z), "z/twins": twins, "z/between": between}
    if len(z) >= 4:
        found["z/rank"] = participation(gram, z.shape[1])
    if e.prototypes is not None:
        found["prototypes/used"] = prototypes_used(z, e.prototypes.float())
    return found


def scale(z: Float[Tensor, "sample dim"]) -> Scalar:
    """Root mean square of the entries, as the network made them.

    >>> float(scale(torch.tensor([[3.0, -3.0], [3.0, 3.0]])))
    3.0
    """
    return z.pow(2).mean().sqrt()


def spread(z: Float[Tensor, "sample dim"]) -> Scalar:
    """Standard deviation of unit features, relative to that of a uniform cloud: 1 is spread out, 0 is collapsed.

    >>> round(float(spread(torch.tensor([[1.0, 0.0], [-5.0, 0.0], [0.0, 2.0], [0.0, -1.0]]))), 4)
    1.0
    """
    deviation: Tensor = F.normalize(z, dim=1).std(0, unbiased=False).mean()
    return deviation * math.sqrt(z.shape[1])


def centred_gram(z: Float[Tensor, "sample dim"]) -> Float[Tensor, "sample sample"]:
    """Inner products of the rows about their mean."""
    centred = z - z.mean(0)
    return centred @ centred.T


def participation(gram: Float[Tensor, "sample sample"], width: int) -> Scalar:
    r"""The effective rank of the covariance behind the samples, of order two, without the bias of few samples.

    .. math:: (\mathrm{tr}\, C)^2 / \mathrm{tr}\, C^2

    of the population's covariance C, between 1 and the width. A sample's own spectrum has at most n - 1 values, and its
    rank tells more about n than about C where n is below the width; so numerator and denominator are each estimated
    without bias, whatever the distribution, from the centred Gram matrix of n >= 4 samples.

    Reference: Himeno and Yamada 2014, Estimations for some functions of covariance matrix in high dimension under
    non-normality, for both traces.
    Differs from the paper: their quotient is kept within the width.

    >>> gram = centred_gram(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [2.0, 0.0], [-2.0, 0.0]]))
    >>> round(float(participation(gram, width=2)), 4)  # all on one line
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
    """The share of samples that have a twin, and the share of pairs that are neither twins nor far apart.

    Few points have all of the first and nothing of the second; a line has both, an even cloud neither.

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
    r"""How many prototypes are the nearest of some sample, relative to what as many even draws would hit.

    .. math:: \frac{\#\{\arg\max_k \cos(z_i, c_k)\}}{K (1 - (1 - 1/K)^n)}

    >>> round(float(prototypes_used(torch.tensor([[1.0, 0.0], [2.0, 0.1]]), torch.eye(2))), 4)  # 1 of the usual 1.5
    0.6667
    """
    nearest = (F.normalize(z, dim=1) @ F.normalize(prototypes, dim=1).T).argmax(1)
    count = len(prototypes)
    hit = torch.zeros(count, device=z.device).scatter_(0, nearest, 1.0).sum()
    return hit / (count * (1 - (1 - 1 / count) ** len(z)))


NEVER = 2**62


class NonFiniteTracker:
    """The first step at which each of some tensors was not finite.

    >>> bad = FirstBad()
    >>> for step, value in enumerate((1.0, torch.inf, torch.nan)):
    ...     bad.note(step, {"z": torch.ones(2, 2), "align/cosine": torch.tensor(value)})
    >>> bad.steps()
    {'align/cosine': 1}
    """

    def __init__(self) -> None:
        self.first: dict[tuple[str, ...], Tensor] = {}

    def note(self, step: int, values: Mapping[str, Tensor]) -> None:
        """A few operations on as many numbers as there are tensors; the same names together at every step."""
        numbers = [value.detach().abs().amax() if value.ndim else value.detach() for value in values.values()]
        now = torch.where(torch.stack([number.float() for number in numbers]).isfinite(), NEVER, step)
        names = tuple(values)
        self.first[names] = torch.minimum(self.first[names], now) if names in self.first else now

    def steps(self) -> dict[str, int]:
        """Those that have been bad, and since when. This waits for the device."""
        found = {n: s for names, first in self.first.items() for n, s in zip(names, first.tolist(), strict=True)}
        return {name: step for name, step in found.items() if step < NEVER}
