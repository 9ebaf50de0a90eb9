"""Term and Sum, with + and *: the language in which objectives are written; and transforms of embeddings."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from glf.types import FIELDS, Embeddings, Scalar

Role = Literal["align", "constrain"]


class Term(nn.Module):
    """One summand of an objective: reads Embeddings, returns a scalar.

    A subclass defines its ``role``, the fields it ``needs``, and its ``formula`` (shown by ``glf methods``). With
    ``reads_raw`` it reads the embeddings as the network produces them, before the method's own transforms
    (standardisation, whitening). A term can also be called with plain tensors, one per view:

    >>> from glf.align.distance import MSE
    >>> round(float(MSE()(torch.zeros(4, 2), torch.ones(4, 2))), 3)
    1.0
    """

    name: ClassVar[str]
    role: ClassVar[Role]
    formula: ClassVar[str]
    needs: frozenset[str] = frozenset({"z"})
    reads_raw: ClassVar[bool] = False
    epoch: float = 0.0  # set by set_epoch, for warm-up schedules

    def forward(self, e: Embeddings) -> Scalar:
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *views: Embeddings | Tensor, **fields: Tensor | Sequence[Tensor]) -> Scalar:
        given = views[0] if len(views) == 1 else None
        e = (given if isinstance(given, Embeddings) else pack(*views, **fields)).in_full_precision()
        with torch.autocast(device_type=e.z.device.type, enabled=False):
            value = super().__call__(e)
        assert isinstance(value, Tensor)
        return value

    @property
    def parts(self) -> "tuple[tuple[float, Term], ...]":
        """The (weight, term) pairs of a Sum; of any other term, itself with weight 1."""
        return ((1.0, self),)

    def set_epoch(self, epoch: float) -> None:
        """Set the number of epochs trained so far, in fractions, for warm-up schedules."""
        set_epoch(self, epoch)

    @property
    def inactive(self) -> bool:
        """Whether the term has no effect yet, during its warm-up."""
        return False

    def diagnose(self, e: Embeddings) -> dict[str, Tensor]:
        """Values to log besides the loss. Called without gradients."""
        return {}

    def __add__(self, other: "Term") -> "Sum":
        return Sum(*self.parts, *other.parts)

    def __rmul__(self, weight: float) -> "Sum":
        return Sum(*((float(weight) * w, term) for w, term in self.parts))

    def extra_repr(self) -> str:
        return configuration(self)


class Tempered(Term):
    """Base class of terms on similarities with a temperature."""

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature


class Banked(Term):
    """Base class of terms that may compare with a bank: the prior's features of many images (``set_bank``)."""

    bank: Tensor | None
    bank_indices: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", None, persistent=False)
        self.register_buffer("bank_indices", None, persistent=False)

    @property
    def reads_bank(self) -> bool:
        """Whether this term, as it is configured, needs the bank."""
        raise NotImplementedError(f"{type(self).__name__} has no reads_bank")

    def set_bank(self, prior: Float[Tensor, "entry width"], indices: Int[Tensor, " entry"]) -> None:
        """Set the prior's features of the bank's images, and the positions of these images in the data set."""
        self.bank, self.bank_indices = prior, indices


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
    """Hard constraint: transforms the embeddings before the terms read them (whitening, standardisation, codes)."""

    formula: ClassVar[str]
    needs: frozenset[str] = frozenset()  # fields besides those of the terms
    epoch: float = 0.0

    def forward(self, e: Embeddings) -> Embeddings:
        raise NotImplementedError(f"{type(self).__name__} has no forward()")


def set_epoch(module: nn.Module, epoch: float) -> None:
    """Set the number of epochs trained so far, in fractions, in every term and transform inside."""
    for part in module.modules():
        if isinstance(part, Term | EmbeddingTransform):
            part.epoch = epoch


def configuration(module: nn.Module) -> str:
    """The constructor arguments and their values, for repr: attributes of the same names."""
    parameters = list(inspect.signature(type(module).__init__).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    values = {name: getattr(module, name) for name in names}
    return ", ".join(f"{n}={v!r}" for n, v in values.items() if not isinstance(v, nn.Module))


def pack(*views: Embeddings | Tensor, **fields: Tensor | Sequence[Tensor]) -> Embeddings:
    """Embeddings from plain tensors, one (batch, dim) per view, for terms used without an objective."""
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}: a term can read {', '.join(FIELDS)}")
    tensors = [view for view in views if isinstance(view, Tensor)]
    if not tensors or len(tensors) != len(views):
        raise ValueError("call a term with Embeddings, or with one (batch, dim) tensor per view")
    shapes = {tuple(view.shape) for view in tensors}
    if len(shapes) != 1 or tensors[0].ndim != 2:
        raise ValueError(f"views must be (batch, dim) tensors of one shape, not {sorted(shapes)}")
    stacked: dict[str, Any] = {k: v if isinstance(v, Tensor) else torch.stack(list(v)) for k, v in fields.items()}
    batch = tensors[0].shape[0]
    prior = stacked.get("prior")
    if prior is not None and (prior.ndim != 2 or prior.shape[0] != batch):
        raise ValueError(f"prior must have one feature vector per image ({batch}), not shape {tuple(prior.shape)}")
    return Embeddings(z=torch.stack(tensors), **stacked)


def mean(values: Iterable[Tensor]) -> Scalar:
    """Mean of scalars. Terms average over views, so that a third view adds no weight."""
    return torch.stack(list(values)).mean()


def cross_view_pairs(student: Tensor, teacher: Tensor) -> list[tuple[int, int]]:
    """Pairs of a view of the student and a different view of the teacher, which has the full-size views only.

    >>> cross_view_pairs(torch.zeros(3, 1), torch.zeros(2, 1))
    [(0, 1), (1, 0), (2, 0), (2, 1)]
    """
    return [(v, w) for v in range(len(student)) for w in range(len(teacher)) if v != w]


def two_views(views: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Both views, or a ValueError: the loss of this name is defined for exactly two."""
    if len(views) != 2:
        raise ValueError(f"{name} is defined for two views, not for {len(views)}")
    return views[0], views[1]
