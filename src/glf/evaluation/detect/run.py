"""Detection and segmentation (--suite detect): from a backbone and annotated images to average precision."""

import json
import os
import re
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from rich.console import Console
from rich.table import Table

from glf.config.base import to_dict
from glf.config.evaluation import DetectOptions
from glf.evaluation.context import EvalContext, Metric
from glf.evaluation.detect.annotations import AnnotationRoot, Annotations
from glf.evaluation.detect.coco import is_coco, read_coco
from glf.evaluation.detect.score import AveragePrecision
from glf.evaluation.detect.train import DivergedError, score_detector, train_detector
from glf.evaluation.detect.voc import read_voc, voc_folders
from glf.malloc import retain_freed_memory
from glf.nn.backbone import Backbone
from glf.result import provenance, write_file
from glf.ui import counted, say

DETECT_FILE = "detect.json"
DETECT_CHECKPOINT = "detect.ckpt"
NO_BOXES = "detection needs annotated images: name them with --boxes"
LAYOUTS = (
    "VOCdevkit/VOC2007/{JPEGImages,Annotations,ImageSets/Main}; annotations/instances_{train,val}2017.json with"
    " {train,val}2017/; images/ with Annotations/*.xml; images/ with annotations/instances.json"
)
Split = Literal["train", "test"]


def detection(context: EvalContext) -> dict[str, Metric]:
    """AP, AP50 and AP75 of boxes and masks of a detector trained from the encoder."""
    if not isinstance(context.encoder, Backbone):
        return {}  # pixels have no backbone
    options = context.config.detect
    if options.boxes is None and "all" in context.config.suite:
        return {}
    out = context.out / "detect" / re.sub(r"[^\w.]+", "-", context.name)
    found = detect(context.encoder.to(context.device), options, out, context.console)
    return {
        f"{kind}_{name}": Metric(
            scores[name], f"{name} of {kind} ({found['protocol']})", {"classes": scores["classes"]}, percent=True
        )
        for kind, scores in found["rows"].items()
        for name in ("AP", "AP50", "AP75")
    }


def detect(backbone: Backbone, options: DetectOptions, out: Path, console: Console) -> dict[str, Any]:
    """Train a detector from a copy of the backbone, on its device, and score it on the test split.

    Writes detect.ckpt and detect.json to ``out`` and returns the content of the latter: under ``rows``, for "boxes" and
    "masks", AP, AP50, AP75 and the AP of each class. With several learning rates, each is tried on four fifths of the
    training images and scored on the others; the best is then used on all. The test split is used once.
    """
    if options.boxes is None:
        raise ValueError(NO_BOXES)
    train, test = (read_boxes(options.boxes, split, seed=options.detect_seed) for split in ("train", "test"))
    _check(train, test, options)
    notes = list(dict.fromkeys((*train.notes, *test.notes)))  # one file may hold both splits
    for note in notes:
        say(console, note)
    say(
        console,
        f"{options.boxes}: {len(train):,} training images with {train.object_count:,} objects, {len(test):,} test"
        f" images with {test.object_count:,} objects, {len(train.classes)} classes",
    )
    with retain_freed_memory(next(backbone.parameters()).device.type == "cpu"):
        tried = _try_learning_rates(backbone, train, options, out, console)
        lr = max(options.detect_lr, key=lambda one: -1.0 if (ap := tried.get(one)) is None else ap)
        model = train_detector(backbone, train, lr, options, out / DETECT_CHECKPOINT)
        rows = score_detector(model, test, options, backbone.channels)
    name = "Mask R-CNN C4" if options.detect_task == "masks" else "Faster R-CNN C4"
    norm = "pretraining" if options.detect_norm == "frozen" else "each batch"
    found = {
        "data": options.boxes,
        "train": len(train),
        "test": len(test),
        "objects": {"train": train.object_count, "test": test.object_count},
        "protocol": (
            f"{name}, {options.detect_size} px, {counted(options.detect_epochs, 'epoch')},"
            f" batch size {options.detect_batch}, lr {lr:g} x {options.detect_batch}/16,"
            f" normalisation statistics of {norm}"
        ),
        "lr": lr,
        "search": {f"{one:g}": ap for one, ap in tried.items()},
        "rows": rows,
        "notes": notes,
        "config": to_dict(options),
        **provenance(),
    }
    write_file(out / DETECT_FILE, json.dumps(found, indent=1) + "\n")
    say(console, str(found["protocol"]))
    table = Table("", "AP", "AP50", "AP75")
    for kind, scores in rows.items():
        table.add_row(kind, *(f"{100 * scores[column]:.1f}" for column in ("AP", "AP50", "AP75")))
    console.print(table)
    return found


def read_boxes(path: str | Path, split: Split, *, seed: int = 0) -> Annotations:
    """Read one split of a Pascal VOC or COCO directory as published, or of your own images in either format.

    Images without split lists are split by the seed. Boxes are clipped to their image, and empty ones or those outside
    are left out; ``notes`` counts both. Everything else that is wrong raises a ValueError that names the file and the
    object in it.
    """
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {get_args(Split)}, got {split!r}")
    root = AnnotationRoot(path=Path(os.path.expanduser(path)))
    folders = voc_folders(root)
    if folders:
        annotations = read_voc(root, folders, split, seed)
    elif is_coco(root):
        annotations = read_coco(root, split, seed)
    else:
        raise ValueError(f"{path} has none of the known layouts: {LAYOUTS}")
    if not annotations.object_count:
        raise ValueError(f"no image of the {split} split of {path} has an object")
    return annotations


def _check(train: Annotations, test: Annotations, options: DetectOptions) -> None:
    """Report before training what would fail after it."""
    if train.classes != test.classes:
        differing = " ".join(sorted(set(train.classes) ^ set(test.classes))) or "the order of their ids"
        raise ValueError(f"the two splits of {options.boxes} differ in their classes: {differing}")
    masks = options.detect_task == "masks"
    AveragePrecision(train.classes, masks=masks)  # reports missing packages
    bare = [one for data in (train, test) for scene in data.scenes for one in scene.objects if not one.segmentation]
    if masks and bare:
        raise ValueError(f"objects without segmentation: {len(bare)}, first {bare[0].name}; use --detect-task boxes")


def _try_learning_rates(
    backbone: Backbone, train: Annotations, options: DetectOptions, out: Path, console: Console
) -> dict[float, float | None]:
    """AP of each learning rate on held-out training images, None if training diverged; empty with one rate."""
    if len(options.detect_lr) == 1:
        return {}
    order = np.random.default_rng(options.detect_seed + 1).permutation(len(train))
    count = max(1, len(train) // 5)
    held_out, rest = train.select(np.sort(order[:count])), train.select(np.sort(order[count:]))
    if not held_out.object_count or not rest.object_count:
        raise ValueError(f"{len(train)} training images are too few to choose a learning rate: give one --detect-lr")
    tried: dict[float, float | None] = {}
    for lr in options.detect_lr:
        try:
            model = train_detector(backbone, rest, lr, options, out / f"detect-lr{lr:g}.ckpt")
            ap = score_detector(model, held_out, options, backbone.channels)[options.detect_task]["AP"]
            tried[lr], shown = ap, f"AP {100 * ap:.1f}"
        except DivergedError:
            tried[lr], shown = None, "diverged"
        say(console, f"learning rate {lr:g}: {shown} on {count} held-out training images")
    return tried
