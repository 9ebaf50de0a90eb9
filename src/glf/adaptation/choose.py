"""The final comparison: frozen weights, adapted weights and their averages; which of them are kept.

Candidates are compared on held-out images by their view recall: how often a view of an image finds another view of that
image among many. Training asks for that on other images; weights that have lost what tells images apart fail it. With
labels, k-NN accuracy comes first. Differences between averages are seldom significant on a few hundred images: a
candidate is out only if another one is significantly better. Of the others the most adapted one is kept; or the frozen
encoder, if that one is no better than it in any figure. docs/adapt.md has the hit rate.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from glf.adaptation.module import Adaptation
from glf.config.evaluation import KNN_K, KNN_TEMPERATURE
from glf.data.images import ImageSet, stratified_sample
from glf.measure.geometry import effective_rank, uniformity
from glf.measure.knn import most_similar, neighbours_kept, weighted_knn_predict

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # weight of the adapted weights in the average
SAMPLE = 5_000  # images of the bank, at most
NOT_CHOSEN = "--no-choose"
UNIFORMITY_IMAGES = 2_000
QUERIES, OTHERS = 1_000, 2_000  # views that are searched for, and further images among which
MOST_PAIRS = 4  # of views of an image: with few held-out images, one pair of each says little
SIGNIFICANT = 2.0  # standard errors


class Candidate(NamedTuple):
    """Weights that may be kept, and how good they are."""

    share: float  # 0: frozen, 1: adapted, between: averages of both
    values: dict[str, float]  # knn (labelled data only), recall, kept, rank, uniformity

    @property
    def name(self) -> str:
        return {0.0: "frozen", 1.0: "adapted"}.get(self.share, f"average {self.share:g}")


class Features(NamedTuple):
    """Functions that compute features: of images as they are, and of their first (0) or second (1) augmented view."""

    images: Callable[[np.ndarray], Tensor]
    views: Callable[[np.ndarray, int], Tensor]


class Comparison(NamedTuple):
    """All candidates, the one that is kept and by which figure, and what either rule would keep."""

    candidates: list[Candidate]
    chosen: Candidate
    by: str
    without_labels: Candidate  # what would be kept if there were no labels
    with_labels: Candidate | None = None

    def sentence(self) -> str:
        """Which weights are kept and why, in one sentence."""
        values, frozen = self.chosen.values, self.candidates[0].values
        kept = f"{100 * values['kept']:.0f} % of the frozen encoder's neighbours kept"
        if self.by == NOT_CHOSEN:
            return f"the adapted weights, as {NOT_CHOSEN} asks: {kept}"
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
        recall = f"{100 * values['recall']:.1f} %, frozen {100 * frozen['recall']:.1f} %"
        where = "held-out" if self.by == "recall" else "training"
        return f"{name}, by the view recall on {where} images ({recall}), {kept}"

    def described(self) -> dict[str, Any]:
        """The content of result.json."""
        rows = {c.name: {name: round(v, 4) for name, v in c.values.items()} for c in self.candidates}
        rules = {"without labels": self.without_labels.name}
        if self.with_labels is not None:
            rules["with labels"] = self.with_labels.name
        chosen = {"chosen": self.chosen.name, "share": self.chosen.share, "by": self.by}
        return {"candidates": rows, **chosen, "rules": rules}


def compare_weights(
    module: Adaptation,
    images: ImageSet,
    train: np.ndarray,
    val: np.ndarray,
    *,
    seed: int,
    frozen: Features | None = None,
    choose: bool = True,
) -> Comparison:
    """Measure every candidate, set the network to the best one, and return all.

    ``frozen`` computes the features of the frozen encoder, if that differs from the network before training in more
    than the trained weights.
    """
    adapted = module.adapted()
    bank = train[stratified_sample(images.targets[train], min(len(train), SAMPLE), seed)]
    rows = val if len(val) else bank
    random = np.random.default_rng([seed, 13])  # a folder lists class by class: the first images are no sample
    queries = random.permutation(rows)[:QUERIES]
    pairs = 1 if frozen else max(1, min(module.view_pairs, MOST_PAIRS, QUERIES // max(1, len(queries))))
    others = random.permutation(np.setdiff1d(bank, queries))[:OTHERS]
    few = random.permutation(len(bank))[:UNIFORMITY_IMAGES]
    labels = images.labelled and len(val) > 0
    candidates, hits, found, before = list[Candidate](), list[Tensor](), list[Tensor](), None
    for share in SHARES:
        module.set_weights(adapted, share)
        own = Features(partial(module.features, images), partial(module.view_features, images))
        encode = frozen if share == 0 and frozen else own
        of_bank = encode.images(bank)
        before = of_bank if before is None else before
        recalled = [
            finds_other_view(encode.views(queries, one), encode.views(queries, one + 1), encode.views(others, one + 1))
            for one in range(0, 2 * pairs, 2)
        ]
        found.append(torch.stack(recalled).mean(0))
        values = {
            "kept": float(neighbours_kept(before, of_bank).mean()),
            "rank": effective_rank(of_bank),
            "uniformity": uniformity(of_bank[few]),
            "recall": float(found[-1].mean()),
        }
        if labels:
            truth, known = (torch.from_numpy(images.targets[r]) for r in (rows, bank))
            predicted = weighted_knn_predict(
                of_bank, known, encode.images(rows), min(KNN_K, len(bank)), KNN_TEMPERATURE
            )
            hits.append((predicted == truth).double())
            values["knn"] = float(hits[-1].mean())
        candidates.append(Candidate(share, values))
    without = candidates[most_adapted(torch.stack(found))]
    given = candidates[most_adapted(torch.stack(found), torch.stack(hits))] if labels else None
    best = (given or without) if choose else candidates[-1]
    by = "knn" if labels else "recall" if len(val) else "recall on training images"
    module.set_weights(adapted, best.share)
    return Comparison(candidates, best, by if choose else NOT_CHOSEN, without, given)


def most_adapted(
    recall: Float[Tensor, "candidate image"], knn: Float[Tensor, "candidate held_out"] | None = None
) -> int:
    """The last candidate that is not beaten, in k-NN first, if it is better than the first, the frozen encoder.

    >>> recall = torch.tensor([[1.0, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0, 1, 0]])
    >>> most_adapted(recall), most_adapted(recall.flip(0)), most_adapted(0 * recall), most_adapted(0 * recall, recall)
    (2, 0, 0, 2)
    """
    figures = [recall] if knn is None else [knn, recall]
    left = list(range(len(recall)))
    for hits in figures:
        left = [i for i, fine in zip(left, not_beaten(hits[left]), strict=True) if fine]
    return left[-1] if any(float(hits[left[-1]].mean()) > float(hits[0].mean()) for hits in figures) else 0


def not_beaten(hits: Float[Tensor, "candidate image"]) -> list[bool]:
    """Whether a candidate is the best one on average, or not significantly below it.

    The standard error is that of the difference: both were measured on the same images.

    >>> one = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0])
    >>> not_beaten(torch.stack([one, one.flip(0), 0 * one]))
    [True, True, False]
    """
    best = hits[hits.mean(1).argmax()]
    behind = (best - hits).mean(1)
    error = (best - hits).std(1) / hits.shape[1] ** 0.5
    return [gap == 0 or gap < SIGNIFICANT * noise for gap, noise in zip(behind.tolist(), error.tolist(), strict=True)]


def finds_other_view(
    first: Float[Tensor, "query dim"], second: Float[Tensor, "query dim"], others: Float[Tensor, "other dim"]
) -> Float[Tensor, " query"]:
    """1 for each image whose first view is most similar to its own second view, among those of all images; else 0.

    >>> views = torch.eye(3)
    >>> finds_other_view(views, views, torch.zeros(0, 3)).tolist(), finds_other_view(views, -views, views).tolist()
    ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    """
    nearest = most_similar(torch.cat((second, others)), first, 1)[1][:, 0]
    return (nearest == torch.arange(len(first))).double()
