"""Objective(align, constrain): a method, written down. Embeddings in, Loss out."""
# MERGED DOCS:
# | """What a row of the table of methods says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from glf.config.base import nearest
from glf.nn.heads import Heads
from glf.terms import EmbeddingTransform, Role, Term, set_epoch
from glf.types import Embeddings, Loss


class Objective(nn.Module):
    """An aligning part plus a constraining part, after the method's own maps (``through``).

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
        """The same objective with one more constraint; the terms are shared, not copied."""
        constrain = extra if self.constrain is None else self.constrain + extra
        return Objective(self.align, constrain, [m for m in self.transforms if isinstance(m, EmbeddingTransform)])

    def set_epoch(self, epoch: float) -> None:
        """Tell every term and map how many epochs have passed, in fractions."""
        set_epoch(self, epoch)

    @property
    def parts(self) -> tuple[tuple[float, Term], ...]:
        """Every (weight, term), the aligning ones first."""
        return self.align.parts + (self.constrain.parts if self.constrain is not None else ())

    @property
    def needs(self) -> frozenset[str]:
        """The fields of Embeddings that any term reads: the network produces only those."""
        return frozenset().union(*(term.needs for _, term in self.parts))

    def described(self) -> dict[str, list[dict[str, float | str]]]:
        """Both parts as weights, names and formulas, and the formulas of the maps before them."""
        found: dict[str, list[dict[str, float | str]]] = {"align": [], "constrain": [], "maps": []}
        for weight, term in self.parts:
            found[term.role].append({"weight": weight, "name": term.name, "formula": term.formula})
        found["maps"] = [{"formula": str(step.formula)} for step in self.transforms]
        return found

    @property
    def inactive(self) -> frozenset[str]:
        """The terms, as they are logged, that wait for their warm-up to end."""
        return frozenset(f"{term.role}/{term.name}" for _, term in self.parts if term.inactive)

    def forward(self, e: Embeddings) -> Loss:
        if e.z.shape[1] < 2:
            raise ValueError(f"an objective compares images: it needs at least two in a batch, not {e.z.shape[1]}")
        # The statistics of a batch are computed in float32 whatever the precision of the network.
        with torch.autocast(device_type=e.z.device.type, enabled=False):
            raw = e.in_full_precision()
            mapped = raw
            for map_ in self.transforms:
                mapped = map_(mapped)
            parts: dict[Role, dict[str, Tensor]] = {"align": {}, "constrain": {}}
            for weight, term in self.parts:
                value = weight * term(raw if term.reads_raw else mapped)
                named = parts[term.role]
                named[term.name] = named[term.name] + value if term.name in named else value
            total = torch.stack([v for named in parts.values() for v in named.values()]).sum()
        return Loss(total=total, align=parts["align"], constrain=parts["constrain"])

    @torch.no_grad()
    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """What the terms have to say beside their values: entropies of rows and the like."""
        with torch.autocast(device_type=e.z.device.type, enabled=False):
            raw = e.in_full_precision()
            return {k: v for _, term in self.parts for k, v in term.diagnose(raw).items()}


def gradient_shares(loss: Loss, *points: Tensor) -> dict[str, Tensor]:
    """Each term's share of the gradient at what the network hands over: z, and its map where there is one.

    The norms of the terms' gradients, summing to one. A term that does not reach those has share zero, which is worth
    knowing: it trains nothing. One whose gradient is not finite is left out of the sum, so that it is seen which.
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
            raise ValueError(f"{part.name} is a term to {part.role}, so it cannot stand as {role}=")


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row. ``objective(**options)`` builds it; ``options`` holds the defaults of what can be set, whole numbers
    where only those make sense."""

    name: str
    title: str
    paper: str
    objective: Callable[..., Objective]
    options: dict[str, float] = field(default_factory=dict)
    augment: str = "wmse"  # a recipe of data/views.py
    heads: Heads
    many_views: bool = True  # or it is defined for two
    ema_momentum: tuple[float, float] | None = None  # first and last momentum of the moving average
    architecture: str = ""  # what constrains it beside the loss
    scale: float = 1.0

    def build(self, **options: float) -> Objective:
        """The objective, with options that the row knows."""
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise ValueError(f"{self.name} has no option {name!r}{nearest(name, self.options)} (it has: {known})")
            if isinstance(self.options[name], int) and not float(value).is_integer():
                raise ValueError(f"{self.name} takes a whole number for {name}, not {value:g}")
        given = {name: type(self.options[name])(value) for name, value in options.items()}
        return self.objective(**{**self.options, **given})
