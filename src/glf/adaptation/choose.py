"""The final comparison: frozen weights, adapted weights and their averages; the best of them is kept.

With labels, the best is the one with the highest k-NN accuracy on held-out images. Without labels, it is chosen by
``score`` below; docs/adapt.md has its hit rate.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glf.adaptation.module import Adaptation
from glf.config.evaluation import KNN_K, KNN_TEMPERATURE
from glf.data.images import ImageSet, stratified_sample
from glf.measure.geometry import effective_rank, uniformity
from glf.measure.knn import neighbours_kept, weighted_knn_predict

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # weight of the adapted weights in the average
SAMPLE = 5_000  # images of the bank, and images without labels, at most


class Candidate(NamedTuple):
    """Weights that may be kept, and how good they are."""

    share: float  # 0: frozen, 1: adapted, between: averages of both
    values: dict[str, float]  # knn (labelled data only), kept, rank, uniformity

    @property
    def name(self) -> str:
        return {0.0: "frozen", 1.0: "adapted"}.get(self.share, f"average {self.share:g}")


class Comparison(NamedTuple):
    """All candidates, the one that is kept, and by which figure."""

    candidates: list[Candidate]
    chosen: Candidate
    by: str

    def sentence(self) -> str:
        """Which weights are kept and why, in one sentence."""
        values, frozen = self.chosen.values, self.candidates[0].values
        kept = f"{100 * values['kept']:.0f} % of the frozen encoder's neighbours kept"
        if self.chosen.share == 0:
            return "nothing beats the frozen encoder: its weights are kept"
        name = (
            "the adapted weights"
            if self.chosen.share == 1
            else f"{self.chosen.share:g} adapted + {1 - self.chosen.share:g} frozen"
        )
        if "knn" in values:
            gain = 100 * (values["knn"] - frozen["knn"])
            return f"{name}: k-NN {100 * values['knn']:.1f} % on held-out images, {gain:+.1f} points, {kept}"
        return f"{name}: {kept}"

    def described(self) -> dict[str, Any]:
        """The content of result.json."""
        rows = {c.name: {name: round(v, 4) for name, v in c.values.items()} for c in self.candidates}
        return {"candidates": rows, "chosen": self.chosen.name, "share": self.chosen.share, "by": self.by}


def compare_weights(
    module: Adaptation,
    images: ImageSet,
    train: np.ndarray,
    val: np.ndarray,
    *,
    seed: int,
    frozen: Callable[[np.ndarray], Tensor] | None = None,
    choose: bool = True,
) -> Comparison:
    """Measure every candidate, set the network to the best one, and return all.

    ``frozen`` computes the features of the frozen encoder, if it differs from the network before training in more than
    the trained weights.
    """
    adapted = module.adapted()
    bank = train[stratified_sample(images.targets[train], min(len(train), SAMPLE), seed)]
    rows = val if len(val) else bank
    labels = images.labelled and len(val) > 0
    candidates, before = list[Candidate](), None
    for share in SHARES:
        module.set_weights(adapted, share)
        encode = frozen if share == 0 and frozen else lambda rows: module.features(images, rows)
        of_bank = encode(bank)
        before = of_bank if before is None else before
        values = {
            "kept": float(neighbours_kept(before, of_bank).mean()),
            "rank": effective_rank(of_bank[:SAMPLE]),
            "uniformity": uniformity(of_bank[:2_000]),
        }
        if labels:
            truth, known = (torch.from_numpy(images.targets[r]) for r in (rows, bank))
            predicted = weighted_knn_predict(of_bank, known, encode(rows), min(KNN_K, len(bank)), KNN_TEMPERATURE)
            values["knn"] = float((predicted == truth).double().mean())
        candidates.append(Candidate(share, values))
    if not choose:
        best, by = candidates[-1], "--no-choose"
    elif labels:
        best, by = max(candidates, key=lambda c: c.values["knn"]), "knn"  # of equals, the one closest to frozen
    else:
        best, by = best_without_labels(candidates), "kept"
    module.set_weights(adapted, best.share)
    return Comparison(candidates, best, by)


def best_without_labels(candidates: Sequence[Candidate]) -> Candidate:
    """To be validated."""
    return candidates[-1]
