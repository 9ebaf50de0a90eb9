"""ADC, the paper's constraint, and its two terms: DCM (distribution calibration) and LPM (local preservation).

- ``equations.py``: the equations of DCM, LPM and the outlier weights, and the terms. Begin here.
- ``neighbours.py``: each anchor's distributions over the other images of its batch.
- ``kernels.py``: squared distances, and the Gaussian and Student-t kernels of them.
- ``blockwise.py``: the same values and gradients over blocks of anchors, in bounded memory.
"""

from glf.constrain.adc.equations import ADC, DCM, LPM, dcm, lpm, outlier_weight

__all__ = ["ADC", "DCM", "LPM", "dcm", "lpm", "outlier_weight"]
