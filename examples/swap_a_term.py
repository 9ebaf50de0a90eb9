"""Swapping one term at a time: the same embeddings under several objectives.

Run: python examples/swap_a_term.py
"""

import torch

from glf import ADC, MSE, Covariance, Embeddings, LogPartition, Objective, Variance, parse

generator = torch.Generator().manual_seed(0)
z = torch.randn(2, 64, 32, generator=generator)
e = Embeddings(z=z, prior=torch.randn(64, 16, generator=generator))

vicreg = Objective(align=25 * MSE(), constrain=25 * Variance() + 2 * Covariance())
objectives = {
    "vicreg, from its terms": vicreg,
    "vicreg, by name": parse("vicreg").build(),
    "VICReg's aligning part, SimCLR's constraint": Objective(align=25 * MSE(), constrain=LogPartition(0.5)),
    "vicreg constrained by ADC": vicreg.constrained_by(ADC(nu=3.0, upsilon=10.0)),
}
for name, objective in objectives.items():
    parts = "  ".join(f"{key} {float(value):.3f}" for key, value in objective(e).log().items())
    print(f"{name}\n    {parts}")
