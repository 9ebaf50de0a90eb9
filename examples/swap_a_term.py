"""One frame, one term swapped at a time: the same embeddings under several objectives.

Run: python examples/swap_a_term.py
"""

import torch

from glf.align.distance import MSE
from glf.constrain.adc.equations import ADC
from glf.constrain.contrast import LogPartition
from glf.constrain.moments import Covariance, Variance
from glf.methods import parse
from glf.objective import Objective
from glf.types import Embeddings

generator = torch.Generator().manual_seed(0)
z = torch.randn(2, 64, 32, generator=generator)
e = Embeddings(z=z, prior=torch.randn(64, 16, generator=generator))

vicreg = Objective(align=25 * MSE(), constrain=25 * Variance() + 2 * Covariance())
objectives = {
    "vicreg, written out": vicreg,
    "vicreg, from the table": parse("vicreg").build(),
    "its aligning part with SimCLR's constraint": Objective(align=25 * MSE(), constrain=LogPartition(0.5)),
    "vicreg constrained by ADC": vicreg.constrained_by(ADC(nu=3.0, upsilon=10.0)),
}
for name, objective in objectives.items():
    parts = "  ".join(f"{key} {float(value):.3f}" for key, value in objective(e).log().items())
    print(f"{name}\n    {parts}")
