"""Average precision as defined by COCO."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glf.evaluation.detect.batches import Target

_IGNORED_AREA = 1e11  # outside all area ranges of COCO's evaluation: the object is ignored, but can be matched


class AveragePrecision:
    r"""AP, AP50 and AP75 over classes, and AP of each class, accumulated over batches of detections.

    .. math:: \mathrm{AP}_t = \frac{1}{101} \sum_{r \in \{0, 0.01, \dots, 1\}} \max_{r' \ge r} p_t(r'), \qquad
              \mathrm{AP} = \frac{1}{10} \sum_{t \in \{0.5, 0.55, \dots, 0.95\}} \mathrm{AP}_t

    with the precision p at IoU threshold t and recall r, averaged over the classes that have objects. At most 100
    detections per image count. Detections of a crowd, or of an object that VOC marks as difficult, are neither true nor
    false positives: for a crowd any number of detections inside it, for a difficult object the best overlapping one.

    Reference: Lin et al. 2014; pycocotools, through torchmetrics.

    Differs from the paper: VOC's own evaluation uses 11 recalls in 2007, and accepts every detection of a difficult
    object; these are COCO's numbers on any data.
    """

    def __init__(self, classes: Sequence[str], *, masks: bool) -> None:
        try:
            import pycocotools  # noqa: F401 (torchmetrics imports it later, with a worse message)
            from torchmetrics.detection import MeanAveragePrecision
        except ImportError as error:
            raise ValueError(
                f"detection is scored by torchmetrics and pycocotools ({error}): pip install 'glf[detect]'"
            ) from error
        self.classes, self.masks = tuple(classes), masks
        # The thresholds of pycocotools: torchmetrics rounds its own to float32, where 0.55 exceeds 0.55.
        ious, recalls = np.linspace(0.5, 0.95, 10).tolist(), np.linspace(0, 1, 101).tolist()
        self.metric: Any = MeanAveragePrecision(
            iou_type=("bbox", "segm") if masks else ("bbox",),
            iou_thresholds=ious,
            rec_thresholds=recalls,
            class_metrics=True,
            backend="pycocotools",
        )
        self.metric.warn_on_many_detections = False

    def update(self, detections: list[dict[str, Tensor]], targets: list[Target]) -> None:
        """Add one batch. Masks of detections are probabilities (object, 1, height, width)."""
        predicted = [{key: one[key].cpu() for key in ("boxes", "labels", "scores")} for one in detections]
        expected = []
        for one in targets:
            difficult = one["ignored"] & ~one["iscrowd"].bool()
            area = torch.where(difficult, _IGNORED_AREA, 0.0)  # 0: computed from the box or the mask
            expected.append({key: one[key] for key in ("boxes", "labels", "iscrowd")} | {"area": area})
        if self.masks:
            for i, (detection, target) in enumerate(zip(detections, targets, strict=True)):
                predicted[i]["masks"] = (detection["masks"][:, 0] > 0.5).cpu()
                expected[i]["masks"] = target["masks"].bool()
        self.metric.update(predicted, expected)

    def compute(self) -> dict[str, Any]:
        """Return {"boxes": {"AP", "AP50", "AP75", "classes": {name: AP}}}, and the same for "masks"; from 0 to 1."""
        found = self.metric.compute()
        names = {"boxes": "bbox_", "masks": "segm_"} if self.masks else {"boxes": ""}
        rows = {}
        for kind, prefix in names.items():
            each = found[f"{prefix}map_per_class"].reshape(-1).tolist()
            labels = found["classes"].reshape(-1).tolist()
            # A detected class without objects has -1; the means do not count it.
            known = {self.classes[label - 1]: _rounded(ap) for label, ap in zip(labels, each, strict=True) if ap >= 0}
            aps = {"AP": "map", "AP50": "map_50", "AP75": "map_75"}
            rows[kind] = {name: _rounded(found[prefix + key]) for name, key in aps.items()} | {"classes": known}
        return rows


def _rounded(value: Any) -> float:
    return round(float(value), 4)
