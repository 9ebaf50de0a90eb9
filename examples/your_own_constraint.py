"""Your own constraint in twenty lines: a function, a thin Term below it, and it goes with every method.

Run: python examples/your_own_constraint.py
"""

import torch

from glf.methods import METHODS
from glf.terms import Term
from glf.types import Embeddings


def slicing(z: torch.Tensor, directions: int = 64) -> torch.Tensor:
    """How far z, seen along random directions, is from normal: sorted values against a normal law's quantiles."""
    u = torch.nn.functional.normalize(torch.randn(z.shape[1], directions, device=z.device), dim=0)
    seen = ((z - z.mean(0)) @ u).sort(dim=0).values
    quantiles = torch.special.ndtri((torch.arange(len(z), device=z.device) + 0.5) / len(z))
    return (seen - quantiles[:, None]).pow(2).mean()


class Slicing(Term):
    """z follows an isotropic normal law, as far as its one-dimensional shadows tell."""

    name, role, formula = "slicing", "constrain", "E_u |sort(z u) - quantiles of N(0, 1)|^2"

    def forward(self, e: Embeddings) -> torch.Tensor:
        return torch.stack([slicing(z) for z in e.z]).mean()


torch.manual_seed(0)
z = torch.randn(2, 128, 16) * torch.linspace(0.1, 2.0, 16)  # stretched: no dimension has the variance of another
z.requires_grad_()
objectives = {name: METHODS[name].build().constrained_by(0.5 * Slicing()) for name in ("align", "vicreg", "simclr")}
for name, objective in objectives.items():
    parts = "  ".join(f"{key} {float(value):.3f}" for key, value in objective(Embeddings(z=z)).log().items())
    print(f"{name}: {parts}")

optimizer = torch.optim.SGD([z], lr=200.0)
for _ in range(60):  # with it even the aligning part alone does not collapse
    loss = objectives["align"](Embeddings(z=z)).total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"after 60 steps of align: loss {loss:.3f}, deviations {z.std(1).min():.3f} to {z.std(1).max():.3f}")
