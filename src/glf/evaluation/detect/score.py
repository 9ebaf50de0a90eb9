"""Average precision as COCO defines it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glf.evaluation.detect.batches import Target

_BEYOND = 1e11  # an area that COCO's evaluation counts in no range: the object is ignored, but matched as any other


class Scores:
    r"""Detections against annotations, image by image; then AP, AP50 and AP75 over classes, and AP of each class.

    .. math:: \mathrm{AP}_t = \frac{1}{101} \sum_{r \in \{0, 0.01, \dots, 1\}} \max_{r' \ge r} p_t(r'), \qquad
              \mathrm{AP} = \frac{1}{10} \sum_{t \in \{0.5, 0.55, \dots, 0.95\}} \mathrm{AP}_t

    with the precision p at overlap t and recall r, averaged over classes that have an object. At most 100 detections of
    an image count. What is found of a crowd, or of an object that VOC calls difficult, is neither right nor wrong: of a
    crowd any number of detections that lie in it, of a difficult object the best that overlaps it.

    Reference: Lin et al. 2014; pycocotools, through torchmetrics.

    Differs from the paper: VOC's own evaluation has 11 recalls in 2007, and forgives every detection of a difficult
    object; these are COCO's numbers on any data.
    """

    def __init__(self, classes: Sequence[str], *, masks: bool) -> None:
        metric = _metric()
        kinds = ("bbox", "segm") if masks else ("bbox",)
        self.classes, self.masks = tuple(classes), masks
        # As pycocotools has them: torchmetrics' own are rounded to float32, and 0.55 is then more than 0.55.
        overlaps, recalls = np.linspace(0.5, 0.95, 10).tolist(), np.linspace(0, 1, 101).tolist()
        self.metric: Any = metric(
            iou_type=kinds,
            iou_thresholds=overlaps,
            rec_thresholds=recalls,
            class_metrics=True,
            backend="pycocotools",
        )
        self.metric.warn_on_many_detections = False

    def update(self, found: list[dict[str, Tensor]], targets: list[Target]) -> None:
        """One batch. Masks of detections are probabilities (object, 1, height, width)."""
        predicted = [{key: one[key].cpu() for key in ("boxes", "labels", "scores")} for one in found]
        said = []
        for one in targets:
            unusual = one["ignored"] & ~one["iscrowd"].bool()
            area = torch.where(unusual, _BEYOND, 0.0)  # 0: computed from the box or the mask
            said.append({key: one[key] for key in ("boxes", "labels", "iscrowd")} | {"area": area})
        if self.masks:
            for i, (one, other) in enumerate(zip(found, targets, strict=True)):
                predicted[i]["masks"] = (one["masks"][:, 0] > 0.5).cpu()
                said[i]["masks"] = other["masks"].bool()
        self.metric.update(predicted, said)

    def compute(self) -> dict[str, Any]:
        """{"boxes": {"AP", "AP50", "AP75", "classes": {name: AP}}}, and the same of "masks"; NaN never, 0 to 1."""
        found = self.metric.compute()
        names = {"boxes": "bbox_", "masks": "segm_"} if self.masks else {"boxes": ""}
        rows = {}
        for kind, prefix in names.items():
            each = found[f"{prefix}map_per_class"].reshape(-1).tolist()
            labels = found["classes"].reshape(-1).tolist()
            # A class that was detected but has no object has -1, and counts in no mean.
            known = {self.classes[label - 1]: _rounded(ap) for label, ap in zip(labels, each, strict=True) if ap >= 0}
            aps = {"AP": "map", "AP50": "map_50", "AP75": "map_75"}
            rows[kind] = {name: _rounded(found[prefix + key]) for name, key in aps.items()} | {"classes": known}
        return rows


def _rounded(value: Any) -> float:
    return round(float(value), 4)


def _metric() -> Any:
    """torchmetrics' class, which asks for pycocotools only when it is made."""
    try:
        import pycocotools  # noqa: F401
        from torchmetrics.detection import MeanAveragePrecision
    except ImportError as error:
        raise ValueError(
            f"detection is scored by torchmetrics and pycocotools ({error}): pip install 'glf[detect]'"
        ) from error
    return MeanAveragePrecision
