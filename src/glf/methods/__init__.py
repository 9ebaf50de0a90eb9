"""The table of methods, and of the constraints that can be added to any of them with a plus: ``byol+adc``.

Each method pairs an aligning with a constraining part. Its entry also names the heads, the augmentation policy of the
paper, and constraints outside the loss. ``scale`` multiplies an added constraint, because losses differ in size: with
it, the default nu and upsilon give ADC 30 to 55 % of the gradient at z for nearly every method (means over three to six
epochs on fashion-mini).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from glf.config.adc import AdcOptions
from glf.config.base import nearest
from glf.constrain.adc import ADC, DCM, LPM
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS, MatchDistribution
from glf.methods import contrastive, decorrelation, prediction, supervision
from glf.objective import Method, Objective
from glf.terms import Term

_FAMILIES = (contrastive, prediction, decorrelation, supervision)
METHODS: dict[str, Method] = {method.name: method for family in _FAMILIES for method in family.TABLE}


def _match(name: str) -> Callable[[AdcOptions], Term]:
    return lambda o: TARGET_DISTRIBUTIONS[name].weight * MatchDistribution(name)


CONSTRAINTS: dict[str, Callable[[AdcOptions], Term]] = {
    "dcm": lambda o: o.nu * DCM(ramp_epochs=o.ramp_epochs, neighbours=NeighbourDistributions.from_options(o)),
    "lpm": lambda o: (
        o.upsilon * LPM(neighbours=NeighbourDistributions.from_options(replace(o, target=None)), at=o.lpm_at or "z")
    ),
    "adc": ADC.from_options,
    **{name: _match(name) for name in TARGET_DISTRIBUTIONS},
}


def parse(spec: str, adc: AdcOptions | None = None) -> Method:
    """The method of ``method`` or ``method+constraint``, its objective with the added constraints.

    >>> [term.name for _, term in parse("byol+adc").build().parts]
    ['predict_teacher', 'dcm', 'lpm']
    >>> parse("simclr+none").name
    'simclr'
    """
    base, *added = (part.strip() for part in spec.lower().split("+"))
    if base not in METHODS:
        raise ValueError(f"unknown method {base!r}{nearest(base, METHODS)} (methods: {', '.join(METHODS)})")
    for name in added:
        if name not in CONSTRAINTS and name != "none":
            known = ", ".join(["none", *CONSTRAINTS])
            raise ValueError(f"unknown constraint {name!r}{nearest(name, CONSTRAINTS)} (constraints: {known})")
        if added.count(name) > 1:
            raise ValueError(f"{spec!r} adds {name!r} twice: set its weight instead (nu, upsilon)")
    added = [name for name in added if name != "none"]
    method = METHODS[base]
    if not added:
        return method

    def objective(**options: Any) -> Objective:
        result = method.objective(**options)
        for name in added:
            result = result.constrained_by(method.scale * CONSTRAINTS[name](adc or AdcOptions()))
        return result

    return replace(method, name="+".join([base, *added]), objective=objective)
