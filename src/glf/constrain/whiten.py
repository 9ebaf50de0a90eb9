"""Hard whitening: a transform of the embeddings to identity covariance (W-MSE)."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from glf.device import to_device
from glf.nn.memory import Draws, covariance_of
from glf.terms import EmbeddingTransform
from glf.types import Embeddings


def whiten(z: Float[Tensor, "batch dim"], epsilon: float = 0.0) -> Float[Tensor, "batch dim"]:
    r"""Centre, and transform to identity covariance, with gradient through the whitening matrix.

    .. math:: v = L^{-1} (z - \mu), \quad (1 - \epsilon) \Sigma + \epsilon I = L L^T

    Reference: Ermolov et al. 2021 (W-MSE), Eq. 5, by Cholesky as in their code.

    >>> z = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> covariance_of(whiten(z)).round(decimals=4).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    n, d = z.shape
    if n <= d and epsilon == 0:
        raise ValueError(
            f"whitening {d} dimensions needs more than {d} images, not {n}: use a larger batch or a narrower projector"
        )
    covariance = (1 - epsilon) * covariance_of(z) + epsilon * torch.eye(d, dtype=z.dtype, device=z.device)
    factor, _ = torch.linalg.cholesky_ex(covariance)  # does not wait for the device; a collapsed batch gives nan
    white: Tensor = torch.linalg.solve_triangular(factor, (z - z.mean(0)).T, upper=False)
    return white.T


class Whiten(EmbeddingTransform):
    """W-MSE: whitens each view in random parts of the batch, drawn again at every step.

    Parts have at least ``size`` images. With ``rounds`` above one this is repeated, and the results are concatenated as
    if they were further images. Each part has its own whitening matrix, so terms after this transform should compare
    views of the same image only.
    """

    formula = "whitening of each view in random parts of the batch"

    def __init__(self, size: int = 128, rounds: int = 1, epsilon: float = 0.0) -> None:
        super().__init__()
        if rounds < 1:
            raise ValueError(f"whitening needs at least one round, not {rounds}")
        self.size, self.rounds, self.epsilon = size, rounds, epsilon
        self.draws = Draws()

    def forward(self, e: Embeddings) -> Embeddings:
        count = e.z.shape[1]
        generator = self.draws.generator()
        orders = [to_device(torch.randperm(count, generator=generator), e.z.device) for _ in range(self.rounds)]
        parts = max(1, count // self.size)
        whitened = []
        for z in e.z:
            rounds = []
            for order in orders:
                permuted = torch.cat([whiten(part, self.epsilon) for part in z[order].tensor_split(parts)])
                rounds.append(torch.empty_like(z).index_copy(0, order, permuted))
            whitened.append(torch.cat(rounds))
        return replace(e, z=torch.stack(whitened))
