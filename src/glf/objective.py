"""Objective: an aligning part plus a constraining part; Method: the entry of the methods table that builds one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glf.config.base import nearest
from glf.config.bounds import check_method_options
from glf.nn.heads import Heads
from glf.terms import EmbeddingTransform, Role, Term, set_epoch
from glf.types import Embeddings, Loss


class Objective(nn.Module):
    """An aligning part plus a constraining part, after the method's own ``transforms`` of the embeddings.

    >>> from glf.align.distance import MSE
    >>> from glf.constrain.moments import Covariance, Variance
    >>> vicreg = Objective(align=25 * MSE(), constrain=25 * Variance() + 2 * Covariance())
    >>> z = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    >>> sorted(vicreg(Embeddings(z=z)).log())
    ['align/mse', 'constrain/covariance', 'constrain/variance', 'loss']
    """

    def __init__(
        self, align: Term, constrain: Term | None = None, transforms: Sequence[EmbeddingTransform] = ()
    ) -> None:
        super().__init__()
        _check_role(align, "align")
        if constrain is not None:
            _check_role(constrain, "constrain")
        self.align, self.constrain = align, constrain
        self.transforms = nn.ModuleList(transforms)

    def constrained_by(self, extra: Term) -> "Objective":
        """A new objective with one more constraint; the terms are shared, not copied."""
        constrain = extra if self.constrain is None else self.constrain + extra
        return Objective(self.align, constrain, [t for t in self.transforms if isinstance(t, EmbeddingTransform)])

    def set_epoch(self, epoch: float) -> None:
        """Set the number of epochs trained so far, in fractions, in every term and transform."""
        set_epoch(self, epoch)

    @property
    def parts(self) -> tuple[tuple[float, Term], ...]:
        """All (weight, term) pairs, the aligning ones first."""
        return self.align.parts + (self.constrain.parts if self.constrain is not None else ())

    @property
    def needs(self) -> frozenset[str]:
        """Fields of Embeddings that some term or transform reads: the network produces only those."""
        of_transforms = (step.needs for step in self.transforms if isinstance(step, EmbeddingTransform))
        return frozenset().union(*(term.needs for _, term in self.parts), *of_transforms)

    def described(self) -> dict[str, list[dict[str, float | str]]]:
        """Weights, names and formulas of both parts, and the formulas of the transforms, as saved in result.json."""
        found: dict[str, list[dict[str, float | str]]] = {"align": [], "constrain": []}
        for weight, term in self.parts:
            found[term.role].append({"weight": weight, "name": term.name, "formula": term.formula})
        return {**found, "transforms": [{"formula": str(step.formula)} for step in self.transforms]}

    @property
    def inactive(self) -> frozenset[str]:
        """Terms, named as in the log, that have no effect yet during their warm-up."""
        return frozenset(f"{term.role}/{term.name}" for _, term in self.parts if term.inactive)

    def forward(self, e: Embeddings) -> Loss:
        if e.z.shape[1] < 2:
            raise ValueError(f"an objective compares images: it needs at least two in a batch, not {e.z.shape[1]}")
        # Batch statistics are computed in float32 (or float64), whatever the precision of the network.
        with torch.autocast(device_type=e.z.device.type, enabled=False):
            raw = e.in_full_precision()
            transformed = raw
            for transform in self.transforms:
                transformed = transform(transformed)
            parts: dict[Role, dict[str, Tensor]] = {"align": {}, "constrain": {}}
            for weight, term in self.parts:
                value = weight * term(raw if term.reads_raw else transformed)
                named = parts[term.role]
                named[term.name] = named[term.name] + value if term.name in named else value
            total = torch.stack([v for named in parts.values() for v in named.values()]).sum()
        return Loss(total=total, align=parts["align"], constrain=parts["constrain"])

    @torch.no_grad()
    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Values that the terms log besides the loss, such as entropies of neighbour distributions."""
        with torch.autocast(device_type=e.z.device.type, enabled=False):
            raw = e.in_full_precision()
            return {k: v for _, term in self.parts for k, v in term.diagnose(raw).items()}


def gradient_shares(loss: Loss, *points: Tensor) -> dict[str, Tensor]:
    """Share of each term in the gradient at the network's outputs (z; r and the feature map if there are any).

    Norms of the terms' gradients, divided by their sum. A term without a gradient there has share zero: it trains
    nothing. A gradient that is not finite is left out of the sum, so that only the share of its own term is affected.
    """
    norms: dict[str, Tensor] = {}
    for part, named in (("align", loss.align), ("constrain", loss.constrain)):
        for name, value in named.items():
            gradients: tuple[Tensor | None, ...] = ()
            if value.requires_grad:
                gradients = torch.autograd.grad(value, points, retain_graph=True, allow_unused=True)
            squares = [gradient.pow(2).sum() for gradient in gradients if gradient is not None]
            norms[f"share/{part}/{name}"] = torch.stack([points[0].new_zeros(()), *squares]).sum().sqrt().float()
    found = torch.stack(list(norms.values()))
    total = found.where(found.isfinite(), 0.0).sum().clamp_min(torch.finfo(torch.float32).tiny)
    return {name: norm / total for name, norm in norms.items()}


def _check_role(term: Term, role: Role) -> None:
    for _, part in term.parts:
        if part.role != role:
            raise ValueError(f"{part.name} is a term to {part.role}: pass it as {part.role}=, not as {role}=")


class Part(NamedTuple):
    """One line of a method's description: a term with its weight, a transform, the architecture."""

    label: str
    text: str
    is_formula: bool = False

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


def describe_term(term: Term) -> list[Part]:
    """Weight, name and formula of each part of a term: ``25 mse: |z - z'|^2 / d``."""
    factors = [("" if weight == 1 else f"{weight:g} ", part) for weight, part in term.parts]
    return [Part(f"{factor}{part.name}", part.formula, is_formula=True) for factor, part in factors]


@dataclass(frozen=True, kw_only=True)
class Method:
    """An entry of the methods table. ``objective(**options)`` builds its objective.

    ``options`` holds the hyperparameters of the loss with their defaults; an int default admits whole numbers only.
    """

    name: str
    title: str = ""  # as shown in tables and errors; default: the name
    paper: str = ""
    objective: Callable[..., Objective]
    options: dict[str, float] = field(default_factory=dict)
    augment: str = "wmse"  # augmentation policy (data/augment/policies.py)
    heads: Heads
    many_views: bool = True  # False: defined for exactly two views
    ema_momentum: tuple[float, float] | None = None  # of the EMA teacher, at the first and at the last step
    architecture: str = ""  # constraints that are not part of the loss, such as a stop-gradient
    unverified: str = ""  # details that we could not compare with the authors' code
    scale: float = 1.0  # factor of an added constraint, because losses differ in size

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.name)

    def build(self, **options: float) -> Objective:
        """Build the objective; options that are not given have their defaults."""
        check_method_options(options, self.name)
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise ValueError(f"{self.name} has no option {name!r}{nearest(name, self.options)} (it has: {known})")
            if isinstance(self.options[name], int) and not float(value).is_integer():
                raise ValueError(f"{self.name} takes a whole number for {name}, not {value:g}")
        given = {name: type(self.options[name])(value) for name, value in options.items()}
        return self.objective(**{**self.options, **given})

    def describe(self) -> dict[Role, list[Part]]:
        """The aligning and the constraining part in words, as printed by ``glf methods`` and in the docs."""
        objective = self.build()
        constrain = describe_term(objective.constrain) if objective.constrain is not None else []
        constrain += [Part("transform", str(step.formula)) for step in objective.transforms]
        notes = {"architecture": self.architecture, "not verified": self.unverified}
        constrain += [Part(label, text) for label, text in notes.items() if text]
        return {"align": describe_term(objective.align), "constrain": constrain}
