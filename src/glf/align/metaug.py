"""Aligning part of MetAug's optimisation-unified contrast, with generated features as further views."""

from glf.similarity import unified_log_sums_of
from glf.terms import Term
from glf.types import Embeddings, Scalar


class UnifiedMatch(Term):
    """Pulls each view to the other views of its image, the farthest most; ``generated`` adds generated features.

    The generated features get no gradient here: UnifiedPartition trains the generator.
    """

    role, formula = "align", "log sum_p exp(-sharpness s_p), s = (1 + cos) / 2"

    def __init__(self, sharpness: float = 16.0, generated: bool = False) -> None:
        super().__init__()
        self.sharpness, self.generated = sharpness, generated
        self.name = "generated_match" if generated else "unified_match"  # type: ignore[misc]
        self.needs = frozenset({"z", "generated"}) if generated else frozenset({"z"})

    def forward(self, e: Embeddings) -> Scalar:
        return unified_log_sums_of(e, self.sharpness, self.generated)[0].mean()
