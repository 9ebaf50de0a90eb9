"""Hard whitening: a map onto embeddings of identity covariance."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from glf.device import to_device
from glf.nn.memory import Draws, covariance_of
from glf.terms import EmbeddingTransform
from glf.types import Embeddings


def whiten(z: Float[Tensor, "batch dim"], epsilon: float = 0.0) -> Float[Tensor, "batch dim"]:
    r"""Centred and of identity covariance, with the gradient through the whitening matrix.

    .. math:: v = L^{-1} (z - \mu), \quad (1 - \epsilon) \Sigma + \epsilon I = L L^T

    Reference: Ermolov et al. 2021 (W-MSE), Eq. 5, by Cholesky as in their code.

    >>> z = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> covariance_of(whiten(z)).round(decimals=4).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    n, d = z.shape
    if n <= d and epsilon == 0:
        raise ValueError(
            f"whitening {d} dimensions takes more than {d} images at once, not {n}: a larger batch, or a narrower z"
        )
    covariance = (1 - epsilon) * covariance_of(z) + epsilon * torch.eye(d, dtype=z.dtype, device=z.device)
    factor, _ = torch.linalg.cholesky_ex(covariance)  # asks the device nothing; a collapsed batch gives nan
    white: Tensor = torch.linalg.solve_triangular(factor, (z - z.mean(0)).T, upper=False)
    return white.T


class Whiten(EmbeddingTransform):
    """Each view whitened in random parts of the batch, so that no batch is whitened to the same end twice.

    Parts have at least ``size`` images. With ``rounds`` above one the whole is done as often, and the results are laid
    side by side as more images. A part is whitened by its own matrix, hence terms behind this map should only compare
    views of one image.
    """

    formula = "each view whitened in random parts of the batch"

    def __init__(self, size: int = 128, rounds: int = 1, epsilon: float = 0.0) -> None:
        super().__init__()
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
            for rows in orders:
                done = torch.cat([whiten(part, self.epsilon) for part in z[rows].tensor_split(parts)])
                rounds.append(torch.empty_like(z).index_copy(0, rows, done))
            whitened.append(torch.cat(rounds))
        return replace(e, z=torch.stack(whitened))
