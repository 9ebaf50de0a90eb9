"""ADC, the paper's constraint, and its two terms: DCM (distribution calibration) and LPM (local preservation).

- ``equations.py``: the equations of DCM, LPM and the outlier weights. Begin here.
- ``terms.py``: DCM, LPM and ADC as terms.
- ``neighbours.py``: each anchor's distributions over the other images of its batch.
- ``targets.py``: what DCM's distributions may be moved towards, besides those of z.
- ``kernels.py``: squared distances, and the Gaussian and Student-t kernels of them.
- ``blockwise.py``: the same values and gradients over blocks of anchors, in bounded memory.
"""

from glf.constrain.adc.equations import dcm, lpm, outlier_weight
from glf.constrain.adc.terms import ADC, DCM, LPM

__all__ = ["ADC", "DCM", "LPM", "dcm", "lpm", "outlier_weight"]
