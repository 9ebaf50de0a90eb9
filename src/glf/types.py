"""What is passed from stage to stage: a batch of images, its views, their embeddings, the loss."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

Scalar = Float[Tensor, ""]
T = TypeVar("T")


class Batch(NamedTuple):
    """Output of the data loader: raw pixels, before augmentation."""

    images: Tensor  # uint8 (batch, channel, height, width)
    target: Tensor  # (batch,): class, or -1 without a label
    indices: Tensor  # (batch,): positions in the data set
    prior: Tensor | None  # (batch, prior): cached features of the prior, where a term needs them


class Views(NamedTuple):
    """Augmented views. A NamedTuple, because Lightning can move and collate those."""

    x: tuple[Tensor, ...]  # per view (batch, channel, height, width) in [0, 1]; crops may differ in size
    boxes: Tensor  # (view, batch, 4): x0 y0 x1 y1 as fractions of the image, x0 > x1 when flipped
    target: Tensor  # (batch,): for probes and supervised methods only
    indices: Tensor  # (batch,): positions in the data set
    prior: Tensor | None  # (batch, prior)
    clean: Tensor | None = None  # the unaugmented images, like a view, where a term needs their embeddings


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """Everything a term may read. The network produces only the fields that some term needs; the others are None."""

    z: Float[Tensor, "view batch dim"]  # output of the projector
    h: Float[Tensor, "view batch feature"] | None = None  # features of the backbone
    r: Float[Tensor, "view batch prior"] | None = None  # output of a linear head on h, as wide as the prior's features
    p: Float[Tensor, "view batch dim"] | None = None  # output of the predictor
    teacher: Float[Tensor, "full batch dim"] | None = None  # EMA teacher's z of the full-size views, which come first
    clean: Float[Tensor, "batch dim"] | None = None  # z of the unaugmented images, the teacher's if there is one
    generated: Float[Tensor, "view batch dim"] | None = None  # a generator's output for (detached) z
    maps: Float[Tensor, "view batch cell local"] | None = None  # projected cells of the feature map, row by row
    boxes: Float[Tensor, "view batch 4"] | None = None  # crops of the views: x0 y0 x1 y1, x0 > x1 when flipped
    scores: Float[Tensor, "view batch class"] | None = None  # of a linear classifier
    instance_scores: Float[Tensor, "view batch image"] | None = None  # of a linear classifier of training images
    target: Int[Tensor, " batch"] | None = None  # class of each image
    instance: Int[Tensor, " batch"] | None = None  # position of each image among the training images
    indices: Int[Tensor, " batch"] | None = None  # positions in the data set
    prior: Float[Tensor, "batch prior"] | None = None  # features of the prior, a frozen reference encoder
    prototypes: Float[Tensor, "prototype dim"] | None = None  # parameters, unit vectors
    teacher_prototypes: Float[Tensor, "prototype dim"] | None = None  # the EMA teacher's, unit vectors
    queue: Float[Tensor, "queued entry key"] | None = None  # entries of a method's memory; added by FromQueue
    codes: Float[Tensor, "full batch prototype"] | None = None  # soft assignments to prototypes; added by a transform
    neighbours: Float[Tensor, "view batch dim"] | None = None  # nearest entries of a queue; added by NearestNeighbours
    full: int | None = None  # number of full-size views, which come first; None: all views
    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """A quantity that several terms use, computed on the first call.

        Values computed with and without gradients are kept apart, so that a diagnosis never feeds a loss.
        """
        key = (key, torch.is_grad_enabled())
        if key not in self._cache:
            self._cache[key] = compute()
        value: T = self._cache[key]
        return value

    def map(self, function: Callable[[Tensor], Tensor]) -> "Embeddings":
        """Apply a function to every tensor that is present."""
        present = {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}
        changed: dict[str, Any] = {name: function(value) for name, value in present.items()}
        return replace(self, **changed)

    def in_full_precision(self) -> "Embeddings":
        """Half precision as float32, because batch statistics need its digits. float64 stays float64."""
        if not any(getattr(getattr(self, name), "dtype", None) in HALF for name in FIELDS):
            return self  # keeps the cache
        return self.map(lambda x: x.float() if x.dtype in HALF else x)

    def require(self, name: str) -> Tensor:
        """The field, or a ValueError that says how to provide it."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"this term reads {name!r}, which was not given: {_ADVICE.get(name, '')}")
        assert isinstance(value, Tensor)
        return value


HALF = (torch.float16, torch.bfloat16)
# Dimension of the batch in each field that the network produces; prototypes are parameters and have none.
BATCH_DIM: dict[str, int | None] = {
    "z": 1, "h": 1, "r": 1, "p": 1, "teacher": 1, "generated": 1, "maps": 1, "boxes": 1, "scores": 1,
    "instance_scores": 1, "target": 0, "instance": 0, "indices": 0, "prior": 0, "clean": 0,
    "prototypes": None, "teacher_prototypes": None,
}  # fmt: skip
# Fields at which a loss has a gradient.
LEARNT = ("z", "h", "r", "p", "generated", "maps", "scores", "instance_scores", "prototypes")
GIVEN = tuple(BATCH_DIM)  # fields that the network produces; transforms of the objective add the others
FIELDS = (*GIVEN, "queue", "codes", "neighbours")
_ADVICE = {
    "prior": "pass prior=... (a frozen encoder's features, one vector per image; in pretraining, --prior)",
    "r": "pass r=... (a linear head's output, one (batch, prior) per view)",
    "p": "pass p=... (the predictor's output, one (batch, dim) per view)",
    "teacher": "pass teacher=... (the EMA teacher's output, one (batch, dim) per view)",
    "clean": "pass clean=... (embeddings of the unaugmented images, one (batch, dim))",
    "target": "pass target=... (a class per image; in pretraining, data with labels)",
    "queue": "the transform FromQueue adds it",
    "codes": "the transform Codes or CentredCodes adds it",
    "neighbours": "the transform NearestNeighbours adds it",
}


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A total, and the weighted contributions that add up to it, by part and by term."""

    total: Scalar
    align: dict[str, Scalar]
    constrain: dict[str, Scalar]

    def log(self) -> dict[str, Tensor]:
        """One flat, detached dictionary: loss, align/<term>, constrain/<term>."""
        parts = {f"align/{name}": value for name, value in self.align.items()}
        parts |= {f"constrain/{name}": value for name, value in self.constrain.items()}
        return {name: value.detach() for name, value in {"loss": self.total, **parts}.items()}
