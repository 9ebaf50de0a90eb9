"""The table: each method is a pairing of an aligning and a constraining part, and ADC can be added to any.

A row also says which heads the pairing needs, which views it was published with, and what constrains it that is
no summand of its loss. ``scale`` multiplies an added constraint, because losses differ in size: with it, one default
of nu and upsilon gives ADC 30 to 55 % of the gradient at z in every row (mean over six epochs on fashion-mini).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from glf.align.distance import MSE, Cosine, Diagonal
from glf.align.predict import PredictTeacher, PredictView
from glf.config import AdcOptions, nearest
from glf.constrain.adc import ADC, DCM, LPM
from glf.constrain.contrast import LogPartition
from glf.constrain.moments import Covariance, Redundancy, Standardise, Variance
from glf.constrain.rows import Rows
from glf.nn.heads import Heads
from glf.objective import Objective
from glf.terms import Term


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row. ``objective(**options)`` builds it; ``options`` holds the defaults of what can be set."""

    name: str
    title: str
    paper: str
    objective: Callable[..., Objective]
    options: dict[str, float] = field(default_factory=dict)
    views: str  # a recipe of data/views.py
    heads: Heads
    teacher: tuple[float, float] | None = None  # first and last momentum of the moving average
    architecture: str = ""  # what constrains it beside the loss
    scale: float = 1.0

    def build(self, **options: float) -> Objective:
        """The objective, with options that the row knows."""
        for name in options:
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise ValueError(f"{self.name} has no option {name!r}{nearest(name, self.options)} (it has: {known})")
        return self.objective(**{**self.options, **options})


def simclr(temperature: float) -> Objective:
    return Objective(align=Cosine(temperature), constrain=LogPartition(temperature))


def simsiam() -> Objective:
    return Objective(align=PredictView())


def byol() -> Objective:
    return Objective(align=2 * PredictTeacher())  # the sum of both directions; the term is their mean


def barlow_twins(redundancy: float) -> Objective:
    return Objective(align=1 * Diagonal(), constrain=redundancy * Redundancy(), through=[Standardise()])


def vicreg(invariance: float, variance: float, covariance: float) -> Objective:
    # The covariances of both views are summed in the paper; the term is their mean, hence twice.
    constrain = variance * Variance() + (2 * covariance) * Covariance()
    return Objective(align=invariance * MSE(), constrain=constrain)


_ROWS = [
    Method(
        name="simclr",
        title="SimCLR",
        paper="Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations",
        objective=simclr,
        options={"temperature": 0.2},
        views="wmse",
        heads=Heads(projector=(512, 128)),
    ),
    Method(
        name="simsiam",
        title="SimSiam",
        paper="Chen and He 2021, Exploring Simple Siamese Representation Learning",
        objective=simsiam,
        views="wmse",
        heads=Heads(projector=(512, 512), last_norm=True, predictor=(128,), fixed_predictor_lr=True),
        architecture="stop-gradient on the target, predictor, batch normalisation of z",
        scale=0.1,
    ),
    Method(
        name="byol",
        title="BYOL",
        paper="Grill et al. 2020, Bootstrap Your Own Latent",
        objective=byol,
        views="wmse",
        heads=Heads(projector=(1024, 256), predictor=(1024,)),
        teacher=(0.99, 1.0),
        architecture="teacher = moving average of the student, without gradient; predictor",
        scale=0.2,
    ),
    Method(
        name="barlow_twins",
        title="Barlow Twins",
        paper="Zbontar et al. 2021, Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
        objective=barlow_twins,
        options={"redundancy": 0.0051},
        views="wmse",
        heads=Heads(projector=(512, 512)),
        scale=200.0,
    ),
    Method(
        name="vicreg",
        title="VICReg",
        paper="Bardes et al. 2022, VICReg: Variance-Invariance-Covariance Regularization",
        objective=vicreg,
        options={"invariance": 25.0, "variance": 25.0, "covariance": 1.0},
        views="wmse",
        heads=Heads(projector=(512, 512)),
        scale=10.0,
    ),
]
METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def _adc(o: AdcOptions) -> Term:
    return ADC(**vars(o))


def _rows(o: AdcOptions) -> Rows:
    kernel = ("rho", "effective_dim", "prior_effective_dim", "t_scale", "reading", "covariance")
    return Rows(**{name: getattr(o, name) for name in kernel})


CONSTRAINTS: dict[str, Callable[[AdcOptions], Term]] = {
    "dcm": lambda o: o.nu * DCM(rows=_rows(o)),
    "lpm": lambda o: o.upsilon * LPM(concentration=o.concentration, rows=_rows(o)),
    "adc": _adc,
}


def parse(spec: str, adc: AdcOptions | None = None) -> Method:
    """``method`` or ``method+constraint``: the row, its objective constrained by what was added.

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
    row = METHODS[base]
    if not added:
        return row

    def objective(**options: Any) -> Objective:
        result = row.objective(**options)
        for name in added:
            result = result.constrained_by(row.scale * CONSTRAINTS[name](adc or AdcOptions()))
        return result

    return replace(row, name="+".join([base, *added]), objective=objective)
