"""SIGReg: every direction of the batch should be a standard Gaussian (LeJEPA)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from glf.device import to_device
from glf.nn.memory import Draws
from glf.terms import Term, mean
from glf.types import Embeddings, Scalar


def epps_pulley(x: Float[Tensor, "sample slice"], knots: int = 17, bound: float = 3.0) -> Scalar:
    r"""Distance of samples to a standard Gaussian by characteristic functions, times n; the mean over slices.

    .. math:: n \int_{-T}^{T} \left|\frac{1}{n} \sum_i e^{\mathrm{i} t x_i} - e^{-t^2/2}\right|^2 e^{-t^2/2} dt

    by the trapezoid rule on knots in [0, T], doubled because the integrand is even. T is ``bound``.

    Reference: Epps and Pulley 1983; Balestriero and LeCun 2025 (LeJEPA), SIGReg, with the knots of their
    minimal code, which takes the half of the paper's symmetric interval.

    >>> x = torch.zeros(2, 1)
    >>> round(float(epps_pulley(x, knots=2, bound=1.0)), 4)  # at 1: 2 * (1 - exp(-1/2))^2 exp(-1/2); at 0: nothing
    0.1878
    """
    t = torch.linspace(0, bound, knots, dtype=x.dtype, device=x.device)
    gaussian = (-t.pow(2) / 2).exp()
    angle = x.unsqueeze(-1) * t
    error = (angle.cos().mean(0) - gaussian).pow(2) + angle.sin().mean(0).pow(2)
    return 2 * len(x) * torch.trapezoid(error * gaussian, t, dim=-1).mean()


class SIGReg(Term):
    """Epps-Pulley distance to a standard Gaussian along random directions; the mean over directions and views.

    Directions are drawn again at every step, equally on all processes. Like the target distributions, the term reads z
    before any transform.
    """

    name, role = "sigreg", "constrain"
    formula = "n int |mean_j exp(i t <w, z_j>) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt"
    reads_raw = True

    def __init__(self, slices: int = 256) -> None:
        super().__init__()
        self.slices = slices
        self.draws = Draws()

    def directions(self, like: Tensor) -> Float[Tensor, "dim slice"]:
        """Random unit vectors, one per column."""
        drawn = torch.randn(like.shape[-1], self.slices, generator=self.draws.generator(), dtype=torch.float32)
        return F.normalize(to_device(drawn, like.device).to(like.dtype), dim=0)

    def forward(self, e: Embeddings) -> Scalar:
        directions = self.directions(e.z)
        return mean(epps_pulley(z @ directions) for z in e.z)
