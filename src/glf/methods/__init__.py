"""The table of methods, and of the constraints that can be added to any of them with a plus: ``byol+adc``.

Each method pairs an aligning with a constraining part. Its entry also names the heads, the augmentation policy of the
paper, and constraints outside the loss. ``scale`` multiplies an added constraint, because losses differ in size: with
it, the default nu and upsilon give ADC 30 to 55 % of the gradient at z for nearly every method (means over three to six
epochs on fashion-mini).
"""

import re
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any, TypeVar

from glf import plugins
from glf.config.adc import AdcOptions
from glf.config.base import nearest
from glf.config.training import PretrainConfig
from glf.files import printable
from glf.methods import contrastive, decorrelation, prediction, supervision
from glf.methods.constraints import CONSTRAINTS, Constraint, Options
from glf.objective import Method, Objective
from glf.terms import Term
from glf.types import GIVEN

_FAMILIES = (contrastive, prediction, decorrelation, supervision)
METHODS: dict[str, Method] = {method.name: method for family in _FAMILIES for method in family.TABLE}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
origins: dict[str, plugins.Plugin | None] = {}  # where what was registered comes from, by its name
Entry = TypeVar("Entry", Method, Constraint)
C = TypeVar("C", bound=PretrainConfig)


def register_method(method: Method) -> Method:
    """Add a method to the table: ``--method NAME``, ``parse("NAME")``. The same plug-in may replace its own."""
    if not isinstance(method, Method):
        raise ValueError(f"register_method takes a glf.Method, not {method!r}")
    objective = method.build()  # a mistake is found here, not in the middle of a run
    for _, part in objective.parts:
        _check(part)
    return _register(METHODS, method)


def register_constraint(name: str, build: Callable[..., Term], options: Options | None = None) -> Constraint:
    """Add a constraint to the table: ``--method vicreg+NAME``.

    ``build(**options)`` returns a constraining term with its weight. ``options`` holds its settings with their
    defaults; ``--options NAME.OPTION VALUE`` sets one.
    """
    constraint = Constraint(name=name, build=build, options=dict(options or {}))
    term = constraint.term(AdcOptions(), {})
    if not isinstance(term, Term):
        raise ValueError(f"{name} is built as {term!r}, which is not a glf.Term")
    for _, part in term.parts:
        _check(part)
        if part.role != "constrain":
            raise ValueError(f"{name} has the term {part.name}, whose role is {part.role!r}, not 'constrain'")
    return _register(CONSTRAINTS, constraint)


def _check(term: Term) -> None:
    """Refuse a term without a name, role or formula, or that needs a field which no network produces."""
    for attribute in ("name", "role", "formula"):
        if not isinstance(getattr(term, attribute, None), str):
            raise ValueError(f"the term {type(term).__name__} has no {attribute}: a text of that name in its class")
    if not isinstance(term.needs, Set) or term.needs - set(GIVEN):
        raise ValueError(f"{term.name} needs {term.needs!r}, which is not a set of these: {', '.join(GIVEN)}")


def _register(table: dict[str, Entry], entry: Entry) -> Entry:
    if not _NAME.fullmatch(entry.name) or entry.name == "none":
        raise ValueError(f"{entry.name!r} cannot be a name: use small letters, digits and underscores")
    origin = plugins.registering()
    if entry.name in (METHODS | CONSTRAINTS):
        before = origins.get(entry.name)
        same = before == origin or (before and origin and set(before) & set(origin))  # file, or content
        if not same or entry.name not in origins or entry.name not in table:
            where = f" from the plug-in {printable(before.name)}" if before else ""
            raise ValueError(f"there is a method or constraint {entry.name!r} already{where}: choose another name")
    table[entry.name], origins[entry.name] = entry, origin
    return entry


def method_of(config: PretrainConfig) -> Method:
    """The method of a config, after the plug-ins that it records."""
    plugins.load(config.plugin)
    return parse(config.method, config.adc)


def with_plugins(config: C) -> C:
    """The config with all plug-ins that its method and constraints come from, besides those that it records."""
    method_of(config)
    found = [origins.get(name) for name in _names(config.method)]
    recorded = {plugins.digest(one) for one in config.plugin}
    more = [str(plugin) for plugin in found if plugin is not None and plugin.sha256 not in recorded]
    return replace(config, plugin=(*config.plugin, *dict.fromkeys(more)))


def _names(spec: str) -> list[str]:
    return [part.strip() for part in spec.lower().split("+")]


def parse(spec: str, adc: AdcOptions | None = None) -> Method:
    """The method of ``method`` or ``method+constraint``, its objective with the added constraints.

    >>> [term.name for _, term in parse("byol+adc").build().parts]
    ['predict_teacher', 'dcm', 'lpm']
    >>> parse("simclr+none").name
    'simclr'
    """
    base, *added = _names(spec)
    if {base, *added} - {*METHODS, *CONSTRAINTS, "none"}:
        plugins.load_installed()
    if base not in METHODS:
        known = f"{nearest(base, METHODS)} (methods: {', '.join(METHODS)}; --plugin FILE adds others)"
        raise ValueError(f"unknown method {base!r}{known}")
    for name in added:
        if name not in CONSTRAINTS and name != "none":
            known = ", ".join(["none", *CONSTRAINTS])
            raise ValueError(
                f"unknown constraint {name!r}{nearest(name, CONSTRAINTS)} (constraints: {known}; --plugin FILE adds"
                " others)"
            )
        if added.count(name) > 1:
            raise ValueError(f"{spec!r} adds {name!r} twice: set its weight instead (--options {name}.OPTION VALUE)")
    constraints = [CONSTRAINTS[name] for name in added if name != "none"]
    method, adc = METHODS[base], adc or AdcOptions()
    if not constraints:
        return method
    own = {f"{one.name}.{option}": value for one in constraints for option, value in one.defaults(adc).items()}

    def objective(**options: Any) -> Objective:
        result = method.objective(**{name: value for name, value in options.items() if name not in own})
        for one in constraints:
            defaults = one.defaults(adc)
            given = {name: options.get(f"{one.name}.{name}", value) for name, value in defaults.items()}
            changed = {name: value for name, value in given.items() if value != defaults[name]}
            result = result.constrained_by(method.scale * one.term(adc, changed))
        return result

    name = "+".join([base, *(one.name for one in constraints)])
    return replace(method, name=name, options=method.options | own, objective=objective)
