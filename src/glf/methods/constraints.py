"""The table of the constraints that can be added to any method with a plus: ``byol+adc``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from glf.config.adc import AdcOptions, NeighbourOptions
from glf.constrain.adc import ADC, DCM, LPM
from glf.constrain.adc.neighbours import MEMORY_SIZE, PERPLEXITY, PRIOR_POWER, NeighbourDistributions
from glf.constrain.sigreg import SIGReg
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS, MatchDistribution
from glf.terms import Term

Options = Mapping[str, float]
_UNSET = {"perplexity": PERPLEXITY, "memory_size": MEMORY_SIZE, "prior_power": PRIOR_POWER}
_OF_NEIGHBOURS = tuple(one.name for one in fields(NeighbourOptions) if one.name != "prior_perplexity")


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """An entry of the table. ``build(**options)`` returns the term, with its weight.

    ``--options NAME.OPTION VALUE`` sets an option of one constraint. Those ``of_adc`` are built from ``AdcOptions``,
    whose fields are flags too, and in which ``options`` names the fields that matter.
    """

    name: str
    build: Callable[..., Term]
    options: Options = field(default_factory=lambda: MappingProxyType({}))
    of_adc: bool = False

    def defaults(self, adc: AdcOptions) -> dict[str, float]:
        """The options with the values that they have if ``--options`` does not set them."""
        if not self.of_adc:
            return dict(self.options)
        found = {name: getattr(adc.resolved(), name) for name in self.options}
        return {name: _UNSET[name] if value is None else value for name, value in found.items()}

    def term(self, adc: AdcOptions, given: Options) -> Term:
        """The term, with these of its options."""
        if self.of_adc:
            changed: dict[str, Any] = dict(given)
            return self.build(replace(adc, **changed))
        return self.build(**{**self.options, **given})


def _of_adc(name: str, build: Callable[[AdcOptions], Term], *options: str) -> Constraint:
    defaults = vars(AdcOptions().resolved())
    named = [one for one in options if isinstance(defaults[one] or _UNSET.get(one), float | int)]
    return Constraint(name=name, build=build, options=dict.fromkeys(named, 0.0), of_adc=True)


def _dcm(o: AdcOptions) -> Term:
    return o.nu * DCM(ramp_epochs=o.ramp_epochs, neighbours=NeighbourDistributions.from_options(o))


def _lpm(o: AdcOptions) -> Term:
    neighbours = NeighbourDistributions.from_options(replace(o, target=None))
    return o.lpm_weight * LPM(neighbours=neighbours, at=o.lpm_at or "z")


def _match(name: str) -> Constraint:
    def build(weight: float) -> Term:
        return weight * MatchDistribution(name)

    return Constraint(name=name, build=build, options={"weight": TARGET_DISTRIBUTIONS[name].weight})


_TABLE = (
    _of_adc("dcm", _dcm, "nu", "ramp_epochs", *_OF_NEIGHBOURS),
    _of_adc("lpm", _lpm, "upsilon", "rho", "effective_dim", "prior_effective_dim"),
    _of_adc("adc", lambda o: ADC(**vars(o)), "nu", "upsilon", "ramp_epochs", *_OF_NEIGHBOURS),
    *(_match(name) for name in TARGET_DISTRIBUTIONS),
    Constraint(name="sigreg", build=lambda weight: weight * SIGReg(), options={"weight": 0.05}),
)
CONSTRAINTS: dict[str, Constraint] = {one.name: one for one in _TABLE}
