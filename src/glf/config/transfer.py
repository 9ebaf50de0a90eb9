"""How a backbone is trained further, for judging it: on a part of the labels, on boxes and masks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glf.config.base import above, at_least

DetectTask = Literal["boxes", "masks"]
DetectNorm = Literal["frozen", "batch"]


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """Fine-tuning on a part of the labels (--suite finetune)."""

    fractions: tuple[float, ...] = (0.01, 0.1)
    """Shares of the training labels, classes in proportion; 1 is all of them."""
    finetune_indices: Path | None = None
    """A file of training rows to learn from, as an earlier evaluation has written it, instead of drawing a share."""
    finetune_epochs: int = 30
    """Passes over a tenth of the labels or more; fewer labels are seen more often, up to ten times as often."""
    finetune_lr: float = 0.02
    """Learning rate of the backbone, for a batch of 256; the classifier's is ten times as large."""
    finetune_batch: int = 128
    """Images in a batch."""

    def __post_init__(self) -> None:
        at_least(self, finetune_epochs=1)
        above(self, finetune_lr=0)


@dataclass(frozen=True, kw_only=True)
class DetectOptions:
    """Transfer to object detection and instance segmentation. See docs/detection.md."""

    boxes: str | None = None
    """Images with boxes: a Pascal VOC or COCO folder as published, your own in either form, or a .tar of one."""
    detect_task: DetectTask = "boxes"
    """Boxes alone (Faster R-CNN), or boxes and masks (Mask R-CNN; COCO's form only)."""
    detect_size: int = 320
    """Shorter side of the images in pixels (MoCo's protocol: 800); anchors scale with it."""
    detect_shrink: float = 0.6
    """Training images are resized to between this share of detect_size and all of it (MoCo's: 480 to 800)."""
    detect_epochs: int = 24
    """Passes over the training images (24,000 steps of 16 images of VOC 2007 and 2012 are 23)."""
    detect_batch: int = 8
    """Images in a batch."""
    detect_lr: tuple[float, ...] = (0.02,)
    """Learning rate for a batch of 16; it scales with the batch. Of several, the best on a fifth of the training images
    that is held out for this is used."""
    detect_regions: int = 128
    """Regions per image that the box head learns from (MoCo's protocol: 512); twice as many are judged."""
    detect_pool: int = 14
    """Side of the grid that a region of conv4's map is pooled to; half of that after conv5."""
    detect_norm: DetectNorm = "frozen"
    """Batch normalisation with the backbone's statistics, or with those of each batch."""
    detect_freeze: int = 0
    """Stages that are not trained: 0 none (MoCo's), 1 the stem, 2 also layer1, 3 also layer2, 4 also layer3."""
    detect_seed: int = 0
    """Seed of the heads, of the order, of flips and sampled regions, and of the division of images without splits."""

    def __post_init__(self) -> None:
        at_least(self, detect_size=1, detect_epochs=1, detect_batch=1, detect_regions=2, detect_pool=1)
        above(self, detect_lr=0)
        if not 0 < self.detect_shrink <= 1:
            raise ValueError(f"detect_shrink must be above 0 and at most 1, got {self.detect_shrink}")
        if not 0 <= self.detect_freeze <= 4:
            raise ValueError(f"detect_freeze must be from 0 to 4, got {self.detect_freeze}")
