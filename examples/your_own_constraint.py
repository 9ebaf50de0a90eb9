"""Your own constraint in twenty lines: a function and a small Term class, which can be added to every method.

Run: python examples/your_own_constraint.py
"""

import torch

from glf import METHODS, Embeddings, Term


def slicing(z: torch.Tensor, directions: int = 64) -> torch.Tensor:
    """Distance of z from a normal distribution along random directions: sorted values against normal quantiles."""
    u = torch.nn.functional.normalize(torch.randn(z.shape[1], directions, device=z.device), dim=0)
    projected = ((z - z.mean(0)) @ u).sort(dim=0).values
    quantiles = torch.special.ndtri((torch.arange(len(z), device=z.device) + 0.5) / len(z))
    return (projected - quantiles[:, None]).pow(2).mean()


class Slicing(Term):
    """Moves z towards an isotropic normal distribution, compared along random directions."""

    name, role, formula = "slicing", "constrain", "E_u |sort(z u) - quantiles of N(0, 1)|^2"

    def forward(self, e: Embeddings) -> torch.Tensor:
        return torch.stack([slicing(z) for z in e.z]).mean()


torch.manual_seed(0)
z = torch.randn(2, 128, 16) * torch.linspace(0.1, 2.0, 16)  # anisotropic: every dimension has a different variance
z.requires_grad_()
objectives = {name: METHODS[name].build().constrained_by(0.5 * Slicing()) for name in ("align", "vicreg", "simclr")}
for name, objective in objectives.items():
    parts = "  ".join(f"{key} {float(value):.3f}" for key, value in objective(Embeddings(z=z)).log().items())
    print(f"{name}: {parts}")

optimizer = torch.optim.SGD([z], lr=200.0)
for _ in range(60):  # with the constraint, even alignment alone does not collapse
    loss = objectives["align"](Embeddings(z=z)).total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"after 60 steps of align: loss {loss:.3f}, standard deviations {z.std(1).min():.3f} to {z.std(1).max():.3f}")
