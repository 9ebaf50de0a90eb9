"""Log-partition terms: repel every sample from every other."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.terms import Term
from glf.types import Embeddings, Scalar


def log_partition(z: Float[Tensor, "sample dim"], temperature: float) -> Scalar:
    r"""Mean log-sum-exp of an anchor's similarities to all other samples: the denominator of InfoNCE.

    .. math:: \frac{1}{m} \sum_a \log \sum_{b \ne a} \exp\left(\frac{\cos(z_a, z_b)}{\tau}\right)

    Reference: Chen et al. 2020 (SimCLR), Eq. 1; the second term of the paper's Eq. 2 (uniformity).

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> round(float(log_partition(z, temperature=1.0)), 4)  # log(1 + 1 + 1/e)
    0.862
    """
    u = F.normalize(z, dim=-1)
    similarity = u @ u.T / temperature
    anchor = torch.eye(len(z), dtype=torch.bool, device=z.device)
    return similarity.masked_fill(anchor, -torch.inf).logsumexp(-1).mean()


class LogPartition(Term):
    """The log-partition over every view of every image of the batch."""

    name, role = "log_partition", "constrain"
    formula = "log sum_b exp(cos(z, z_b) / temperature)"

    def __init__(self, temperature: float = 0.5) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, e: Embeddings) -> Scalar:
        return log_partition(e.z.flatten(0, 1), self.temperature)
