"""Average precision: values computed by hand, an independent loop, ignored objects."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glf.evaluation.detect.score import AveragePrecision

THRESHOLDS = np.linspace(0.5, 0.95, 10)


def annotated(boxes: list[list[float]], labels: list[int], crowd: int = 0, difficult: int = 0) -> dict[str, Tensor]:
    """Annotations of an image: the last ``crowd`` objects are crowds, ``difficult`` objects before them difficult."""
    iscrowd = torch.tensor([0] * (len(boxes) - crowd) + [1] * crowd, dtype=torch.int64)
    ignored = torch.tensor([0] * (len(boxes) - crowd - difficult) + [1] * (crowd + difficult), dtype=torch.bool)
    given = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return {"boxes": given, "labels": torch.tensor(labels, dtype=torch.int64), "iscrowd": iscrowd, "ignored": ignored}


def detected(boxes: list[list[float]], labels: list[int], scores: list[float]) -> dict[str, Tensor]:
    given = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return {"boxes": given, "labels": torch.tensor(labels, dtype=torch.int64), "scores": torch.tensor(scores)}


def scored(pairs: list[tuple[dict[str, Tensor], dict[str, Tensor]]], classes: tuple[str, ...] = ("a",)) -> Any:
    scores = AveragePrecision(classes, masks=False)
    scores.update([one for one, _ in pairs], [other for _, other in pairs])
    return scores.compute()["boxes"]


A, B, FAR = [0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 40.0, 40.0], [60.0, 60.0, 70.0, 70.0]


def test_two_objects_and_a_false_positive_between_them() -> None:
    # By decreasing score: true, false, true. Precision 1 up to recall 0.5, then 2/3: 51 and 50 of the 101 recalls.
    row = scored([(detected([A, FAR, B], [1, 1, 1], [0.9, 0.8, 0.7]), annotated([A, B], [1, 1]))])
    assert row["AP"] == row["AP50"] == row["AP75"] == round((51 + 50 * 2 / 3) / 101, 4)


def test_a_loose_box_counts_at_low_thresholds_only() -> None:
    loose = [0.0, 0.0, 10.0, 6.2]  # IoU 0.62: a hit at 0.5, 0.55 and 0.6
    row = scored([(detected([loose], [1], [0.9]), annotated([A], [1]))])
    assert (row["AP"], row["AP50"], row["AP75"]) == (0.3, 1.0, 0.0)


def test_classes_are_averaged_and_those_without_objects_are_not_counted() -> None:
    pair = (detected([A, FAR], [1, 3], [0.9, 0.9]), annotated([A, B], [1, 2]))
    row = scored([pair], ("a", "b", "c"))
    assert row["AP"] == 0.5
    assert row["classes"] == {"a": 1.0, "b": 0.0}


def test_a_single_class_and_images_without_anything() -> None:
    empty = (detected([], [], []), annotated([], []))
    assert scored([(detected([A], [1], [0.9]), annotated([A], [1])), empty])["classes"] == {"a": 1.0}
    assert scored([empty, (detected([], [], []), annotated([A], [1]))])["AP"] == 0.0


def test_detections_of_a_crowd_are_neither_true_nor_false_positives() -> None:
    inside = [[21.0, 21.0, 25.0, 25.0], [30.0, 30.0, 36.0, 36.0]]  # small parts of the crowd in B
    detections = detected([*inside, A], [1, 1, 1], [0.9, 0.8, 0.7])
    assert scored([(detections, annotated([A, B], [1, 1], crowd=1))])["AP"] == 1.0
    assert scored([(detections, annotated([A, B], [1, 1]))])["AP"] < 0.5


def test_a_difficult_object_does_not_count_but_a_part_of_it_is_a_false_positive() -> None:
    assert scored([(detected([A], [1], [0.7]), annotated([A, B], [1, 1], difficult=1))])["AP"] == 1.0
    assert scored([(detected([B, A], [1, 1], [0.9, 0.7]), annotated([A, B], [1, 1], difficult=1))])["AP"] == 1.0
    part = [21.0, 21.0, 25.0, 25.0]
    assert scored([(detected([part, A], [1, 1], [0.9, 0.7]), annotated([A, B], [1, 1], difficult=1))])["AP"] == 0.5


def test_masks_are_scored_by_their_own_iou() -> None:
    box = [0.0, 0.0, 10.0, 10.0]
    triangle = torch.ones(10, 10).tril()  # 55 of the box's 100 pixels
    target = annotated([box], [1]) | {"masks": triangle[None].byte()}
    scores = AveragePrecision(("a",), masks=True)
    full = detected([box], [1], [0.9]) | {"masks": torch.full((1, 1, 10, 10), 0.9)}
    scores.update([full], [target])
    rows = scores.compute()
    assert rows["boxes"]["AP"] == 1.0
    assert (rows["masks"]["AP"], rows["masks"]["AP50"]) == (0.2, 1.0)  # IoU 0.55: a hit at 0.5 and 0.55
    scores = AveragePrecision(("a",), masks=True)
    scores.update([full | {"masks": 0.4 + 0.2 * triangle[None, None]}], [target])  # above 0.5 is inside
    assert scores.compute()["masks"]["AP"] == 1.0


def iou(a: np.ndarray, b: np.ndarray) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    inside = max(width, 0.0) * max(height, 0.0)
    area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return float(inside / (area[0] + area[1] - inside))


def looped(pairs: list[tuple[dict[str, Tensor], dict[str, Tensor]]], label: int, threshold: float) -> float:
    """AP of a class at a threshold by the definition, in float64."""
    hits: list[tuple[float, bool]] = []
    total = 0
    for one, other in pairs:
        objects = other["boxes"][other["labels"] == label].double().numpy()
        total += len(objects)
        free = set(range(len(objects)))
        mine = one["labels"] == label
        boxes, scores = one["boxes"][mine].double().numpy(), one["scores"][mine].double().numpy()
        for i in np.argsort(-scores):
            best = max(free, key=lambda j: iou(boxes[i], objects[j]), default=None)
            hit = best is not None and iou(boxes[i], objects[best]) >= threshold
            if hit and best is not None:
                free.remove(best)
            hits.append((float(scores[i]), hit))
    hits.sort(key=lambda pair: -pair[0])
    right = np.cumsum([hit for _, hit in hits])
    precision, recall = right / np.arange(1, len(hits) + 1), right / total
    return float(np.mean([max(precision[recall >= r], default=0.0) for r in np.linspace(0, 1, 101)]))


def test_against_a_loop() -> None:
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(12):
        corners = random.uniform(0, 80, (random.integers(1, 6), 2))
        objects = np.concatenate([corners, corners + random.uniform(8, 30, corners.shape)], 1)
        labels = random.integers(1, 3, len(objects))
        near = np.repeat(objects, 2, 0) + random.normal(0, 2, (2 * len(objects), 4))
        guessed = np.where(random.random(len(near)) < 0.8, np.repeat(labels, 2), 3 - np.repeat(labels, 2))
        pairs.append(
            (
                detected(near.tolist(), guessed.tolist(), random.random(len(near)).tolist()),
                annotated(objects.tolist(), labels.tolist()),
            )
        )
    row = scored(pairs, ("a", "b"))
    table = np.array([[looped(pairs, label, t) for t in THRESHOLDS] for label in (1, 2)])
    assert 0.1 < table.mean() < 0.9
    assert row["AP"] == pytest.approx(table.mean(), abs=1e-4)
    assert row["AP50"] == pytest.approx(table[:, 0].mean(), abs=1e-4)
    assert row["AP75"] == pytest.approx(table[:, 5].mean(), abs=1e-4)
    assert row["classes"] == {
        "a": pytest.approx(table[0].mean(), abs=1e-4),
        "b": pytest.approx(table[1].mean(), abs=1e-4),
    }


@pytest.mark.parametrize("package", ["pycocotools", "torchmetrics.detection"])
def test_missing_packages_are_named_with_the_command_to_install_them(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"{package}.*pip install 'glf\[detect\]'"):
        AveragePrecision(("a",), masks=False)
