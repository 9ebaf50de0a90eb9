"""What travels on each arrow: a batch of images, its views, their embeddings, the loss."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

Scalar = Float[Tensor, ""]
T = TypeVar("T")


class Batch(NamedTuple):
    """What the loader hands over: raw pixels, before any augmentation."""

    images: Tensor  # uint8 (batch, channel, height, width)
    target: Tensor  # (batch,): -1 where there is no label
    indices: Tensor  # (batch,): positions in the data set
    prior: Tensor | None  # (batch, prior): cached rows of f_pre, where a term asks for them


class Views(NamedTuple):
    """Augmented views. A NamedTuple, because Lightning moves and collates those."""

    x: tuple[Tensor, ...]  # one (batch, channel, height, width) in [0, 1] per view; crops may differ in size
    boxes: Tensor  # (view, batch, 4): x0 y0 x1 y1 in fractions of the image, x0 > x1 when flipped
    target: Tensor  # (batch,): read by probes and by supervised methods only
    indices: Tensor  # (batch,): positions in the data set
    prior: Tensor | None  # (batch, prior)


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """Everything a term may look at; None where nobody asked for it."""

    z: Float[Tensor, "view batch dim"]
    h: Float[Tensor, "view batch feature"] | None = None
    p: Float[Tensor, "view batch dim"] | None = None
    teacher: Float[Tensor, "full batch dim"] | None = None  # of the views of full size, which come first
    generated: Float[Tensor, "view batch dim"] | None = None  # what a generator makes of z, which it does not move
    maps: Float[Tensor, "view batch cell local"] | None = None  # cells of the backbone's map, row by row, projected
    boxes: Float[Tensor, "view batch 4"] | None = None  # where the views were cut: x0 y0 x1 y1, x0 > x1 when flipped
    scores: Float[Tensor, "view batch class"] | None = None  # of a linear classifier
    target: Int[Tensor, " batch"] | None = None
    indices: Int[Tensor, " batch"] | None = None
    prior: Float[Tensor, "batch prior"] | None = None
    prototypes: Float[Tensor, "prototype dim"] | None = None  # parameters, of unit length
    queue: Float[Tensor, "full entry dim"] | None = None  # what a method's memory holds; added by its map
    codes: Float[Tensor, "full batch prototype"] | None = None  # soft assignments; added by a method's map
    _shared: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """A quantity that several terms use, computed by the first that asks.

        What was computed without gradients, for a diagnosis, is not handed to a loss.
        """
        key = (key, torch.is_grad_enabled())
        if key not in self._shared:
            self._shared[key] = compute()
        value: T = self._shared[key]
        return value

    def map(self, function: Callable[[Tensor], Tensor]) -> "Embeddings":
        """The same function on every tensor that is there."""
        present = {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}
        changed: dict[str, Any] = {name: function(value) for name, value in present.items()}
        return replace(self, **changed)

    def in_full_precision(self) -> "Embeddings":
        """Half precision becomes float32: statistics of a batch need its digits. float64 stays."""
        if not any(getattr(getattr(self, name), "dtype", None) in HALF for name in FIELDS):
            return self  # with what has been computed of it
        return self.map(lambda x: x.float() if x.dtype in HALF else x)

    def require(self, name: str) -> Tensor:
        """The field, or a ValueError that says who should have provided it."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"this term reads {name!r}, which was not given: {_ADVICE.get(name, '')}")
        assert isinstance(value, Tensor)
        return value


HALF = (torch.float16, torch.bfloat16)
# The dimension of the batch in what the network hands over; prototypes are parameters and have none.
BATCH_DIM: dict[str, int | None] = {
    "z": 1, "h": 1, "p": 1, "teacher": 1, "generated": 1, "maps": 1, "boxes": 1, "scores": 1,
    "target": 0, "indices": 0, "prior": 0,
    "prototypes": None,
}  # fmt: skip
LEARNT = ("z", "h", "p", "generated", "maps", "scores", "prototypes")  # those that a loss has a gradient at
GIVEN = tuple(BATCH_DIM)  # fields that come from the network; maps of the objective add the others
FIELDS = (*GIVEN, "queue", "codes")
_ADVICE = {
    "prior": "pass prior=... (one row of a frozen encoder's features per image; in pretraining, --prior)",
    "p": "pass p=... (the predictor's output, one (batch, dim) per view)",
    "teacher": "pass teacher=... (the momentum encoder's output, one (batch, dim) per view)",
    "target": "pass target=... (a class per image; in pretraining, data with labels)",
    "queue": "the method's map FromQueue adds it",
    "codes": "the method's map Codes adds it",
}


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A total and the weighted contributions that add up to it, by part and by term."""

    total: Scalar
    align: dict[str, Scalar]
    constrain: dict[str, Scalar]

    def log(self) -> dict[str, Tensor]:
        """One flat, detached dictionary: loss, align/<term>, constrain/<term>."""
        parts = {f"align/{name}": value for name, value in self.align.items()}
        parts |= {f"constrain/{name}": value for name, value in self.constrain.items()}
        return {name: value.detach() for name, value in {"loss": self.total, **parts}.items()}
