"""Term, Sum, and the + and * algebra that objectives are written in."""

import inspect
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from glf.types import FIELDS, Embeddings, Scalar

Role = Literal["align", "constrain"]


class Term(nn.Module):
    """One summand of an objective: reads Embeddings, returns a scalar.

    A subclass says its ``role``, the fields it ``needs``, and its ``formula`` (shown by ``glf methods``). A term
    with ``reads_raw`` reads the embeddings as the network made them, not as the method's own maps
    (standardising, whitening) left them. Called with plain tensors, one per view, a term packs them itself:

    >>> from glf.align.distance import MSE
    >>> round(float(MSE()(torch.zeros(4, 2), torch.ones(4, 2))), 3)
    1.0
    """

    name: ClassVar[str]
    role: ClassVar[Role]
    formula: ClassVar[str]
    needs: frozenset[str] = frozenset({"z"})
    reads_raw: ClassVar[bool] = False
    epoch: float = 0.0  # how far training is; set by at, for what is warmed up

    def forward(self, e: Embeddings) -> Scalar:
        raise NotImplementedError(f"{type(self).__name__} is not a term of its own")

    def __call__(self, *views: Embeddings | Tensor, **fields: Tensor | Sequence[Tensor]) -> Scalar:
        given = views[0] if len(views) == 1 else None
        e = (given if isinstance(given, Embeddings) else pack(*views, **fields)).in_full_precision()
        with torch.autocast(device_type=e.z.device.type, enabled=False):
            value = super().__call__(e)
        assert isinstance(value, Tensor)
        return value

    @property
    def parts(self) -> "tuple[tuple[float, Term], ...]":
        """The (weight, term) pairs that this term is made of: itself, unless it is a Sum."""
        return ((1.0, self),)

    def set_epoch(self, epoch: float) -> None:
        """Tell the term, and those it is made of, how many epochs have passed: for what is warmed up."""
        set_epoch(self, epoch)

    @property
    def inactive(self) -> bool:
        """Whether it still waits for a warm-up to end, and is no term yet."""
        return False

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Numbers worth logging that are no part of the loss. Called without gradients."""
        return {}

    def __add__(self, other: "Term") -> "Sum":
        return Sum(*self.parts, *other.parts)

    def __rmul__(self, weight: float) -> "Sum":
        return Sum(*((float(weight) * w, term) for w, term in self.parts))

    def extra_repr(self) -> str:
        return configuration(self)


class Tempered(Term):
    """A term on similarities over a temperature."""

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature


class Sum(Term):
    """A weighted sum of terms. ``25 * Variance() + 2 * Covariance()`` is one."""

    name = "sum"
    formula = "sum"

    def __init__(self, *parts: tuple[float, Term]) -> None:
        super().__init__()
        self.weights = tuple(float(weight) for weight, _ in parts)
        self.terms = nn.ModuleList(term for _, term in parts)
        self.needs = frozenset().union(*(term.needs for _, term in parts))

    @property
    def parts(self) -> tuple[tuple[float, Term], ...]:
        terms = [term for term in self.terms if isinstance(term, Term)]
        return tuple(zip(self.weights, terms, strict=True))

    def forward(self, e: Embeddings) -> Scalar:
        return torch.stack([weight * term(e) for weight, term in self.parts]).sum()

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        return {k: v for _, term in self.parts for k, v in term.diagnose(e).items()}

    def extra_repr(self) -> str:
        return configuration(self) or f"weights={self.weights}"


class EmbeddingTransform(nn.Module):
    """A constraint that is a map: Embeddings in, Embeddings on the feasible set out."""

    formula: ClassVar[str]
    epoch: float = 0.0

    def forward(self, e: Embeddings) -> Embeddings:
        raise NotImplementedError(f"{type(self).__name__} is not a map of its own")


def set_epoch(module: nn.Module, epoch: float) -> None:
    """Every term and map inside hears how many epochs have passed, in fractions."""
    for part in module.modules():
        if isinstance(part, Term | EmbeddingTransform):
            part.epoch = epoch


def configuration(module: nn.Module) -> str:
    """The constructor's named arguments, which are stored under their own names: what repr shows."""
    parameters = list(inspect.signature(type(module).__init__).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    values = {name: getattr(module, name) for name in names}
    return ", ".join(f"{n}={v!r}" for n, v in values.items() if not isinstance(v, nn.Module))


def pack(*views: Embeddings | Tensor, **fields: Tensor | Sequence[Tensor]) -> Embeddings:
    """Plain tensors, one (batch, dim) per view, as Embeddings: what stand-alone use goes through."""
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}: a term reads {', '.join(FIELDS)}")
    tensors = [view for view in views if isinstance(view, Tensor)]
    if not tensors or len(tensors) != len(views):
        raise ValueError("call a term with Embeddings, or with one (batch, dim) tensor per view")
    shapes = {tuple(view.shape) for view in tensors}
    if len(shapes) != 1 or tensors[0].ndim != 2:
        raise ValueError(f"views must be (batch, dim) tensors of one shape, not {sorted(shapes)}")
    stacked = {k: v if isinstance(v, Tensor) else torch.stack(list(v)) for k, v in fields.items()}
    batch = tensors[0].shape[0]
    prior = stacked.get("prior")
    if prior is not None and (prior.ndim != 2 or prior.shape[0] != batch):
        raise ValueError(f"prior must have one row per image ({batch}), not shape {tuple(prior.shape)}")
    return Embeddings(z=torch.stack(tensors), **stacked)


def mean(values: Iterable[Tensor]) -> Scalar:
    """The mean of scalars: terms average over views, so that a third view adds no weight."""
    return torch.stack(list(values)).mean()


def across(student: Tensor, teacher: Tensor) -> list[tuple[int, int]]:
    """The pairs of a student's view with another view of the teacher, which has the views of full size only.

    >>> across(torch.zeros(3, 1), torch.zeros(2, 1))
    [(0, 1), (1, 0), (2, 0), (2, 1)]
    """
    return [(v, w) for v in range(len(student)) for w in range(len(teacher)) if v != w]


def two(views: Tensor, who: str) -> tuple[Tensor, Tensor]:
    """Both views, or a ValueError: some losses are defined for two and no more."""
    if len(views) != 2:
        raise ValueError(f"{who} is defined for two views, not for {len(views)}")
    return views[0], views[1]
