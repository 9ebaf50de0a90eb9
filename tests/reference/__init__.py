"""The papers' equations as nested loops over samples, sharing no code with glf.

Every function takes tensors apart and works on single entries in float64; autograd differentiates the loops. Quantities
that an equation holds fixed (sg) are arguments of their own.
"""

from reference.adc import *  # noqa: F403
from reference.compare import *  # noqa: F403
from reference.losses import *  # noqa: F403
from reference.methods import *  # noqa: F403
from reference.relations import *  # noqa: F403
from reference.terms import *  # noqa: F403
