"""What can be added to any method with a +."""

from collections.abc import Callable

from glf.config import AdcOptions
from glf.constrain.adc import ADC, DCM, LPM
from glf.constrain.distribution import LAWS, Distributed
from glf.constrain.rows import Rows
from glf.terms import Term


def _rows(o: AdcOptions) -> Rows:
    kernel = ("rho", "effective_dim", "prior_effective_dim", "t_scale", "reading", "covariance")
    return Rows(**{name: getattr(o, name) for name in kernel})


CONSTRAINTS: dict[str, Callable[[AdcOptions], Term]] = {
    "dcm": lambda o: o.nu * DCM(ramp_epochs=o.ramp_epochs, rows=_rows(o)),
    "lpm": lambda o: o.upsilon * LPM(concentration=o.concentration, rows=_rows(o)),
    "adc": lambda o: ADC(**vars(o)),
    **{name: lambda o, name=name, law=law: law.weight * Distributed(name) for name, law in LAWS.items()},  # type: ignore[misc]
}
