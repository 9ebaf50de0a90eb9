"""From a backbone and annotated images to average precision."""
# MERGED DOCS:
# | """Detection and segmentation as a part of the suite."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from glf import result
from glf.config.base import to_dict
from glf.config.transfer import DetectOptions
from glf.evaluation.context import EvalContext, Metric
from glf.evaluation.detect.annotations import Annotations
from glf.evaluation.detect.read import read_boxes
from glf.evaluation.detect.score import Scores
from glf.evaluation.detect.train import DivergedError, score_detector, train_detector
from glf.malloc import retain_freed_memory
from glf.nn.backbone import Backbone

FILE = "detect.json"
CHECKPOINT = "detect.ckpt"


def detect(backbone: Backbone, options: DetectOptions, out: Path, console: Console) -> dict[str, Any]:
    """Train a detector from the backbone, on its device, and judge it; the backbone itself stays as it is.

    Writes detect.ckpt and detect.json into ``out``, and returns what the latter holds: under ``rows``, for "boxes" and
    "masks", AP, AP50, AP75 and the AP of each class. Of several learning rates, each is tried on four fifths of the
    training images and judged on the others; the best is then used on all. The test split is looked at once.
    """
    if options.boxes is None:
        raise ValueError("no annotated images to learn detection from: name them with --boxes")
    train, test = (read_boxes(options.boxes, split, seed=options.detect_seed) for split in ("train", "test"))
    _check(train, test, options)
    notes = list(dict.fromkeys((*train.notes, *test.notes)))  # once, when one file has both splits
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{options.boxes}: {len(train):,} images with {train.objects:,} objects to train on, {len(test):,} with"
        f" {test.objects:,} to judge on, {len(train.classes)} classes",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    with retain_freed_memory(next(backbone.parameters()).device.type == "cpu"):
        tried = _search(backbone, train, options, out, console)
        rate = max(options.detect_lr, key=lambda one: -1.0 if (ap := tried.get(one)) is None else ap)
        model = train_detector(backbone, train, rate, options, out / CHECKPOINT)
        rows = score_detector(model, test, options, backbone.channels)
    found = {
        "data": options.boxes,
        "train": len(train),
        "test": len(test),
        "objects": {"train": train.objects, "test": test.objects},
        "protocol": _protocol(options, rate),
        "lr": rate,
        "search": {f"{one:g}": ap for one, ap in tried.items()},
        "rows": rows,
        "notes": notes,
        "config": to_dict(options),
        **result.provenance(),
    }
    result.write(out / FILE, json.dumps(found, indent=1) + "\n")
    _print(console, found)
    return found


def _check(train: Annotations, test: Annotations, options: DetectOptions) -> None:
    """What would otherwise go wrong after hours."""
    if train.classes != test.classes:
        differing = " ".join(sorted(set(train.classes) ^ set(test.classes))) or "the order of their ids"
        raise ValueError(f"the two splits of {options.boxes} differ in their classes: {differing}")
    masks = options.detect_task == "masks"
    Scores(train.classes, masks=masks)  # says which packages are missing
    bare = [one for data in (train, test) for scene in data.scenes for one in scene.objects if not one.outline]
    if masks and bare:
        raise ValueError(f"objects without an outline: {len(bare)}, first {bare[0].name}; use --detect-task boxes")


def _search(
    backbone: Backbone, train: Annotations, options: DetectOptions, out: Path, console: Console
) -> dict[float, float | None]:
    """AP of each rate on held-out training images, None where training diverged; nothing when there is one rate."""
    if len(options.detect_lr) == 1:
        return {}
    order = np.random.default_rng(options.detect_seed + 1).permutation(len(train))
    count = max(1, len(train) // 5)
    held_out, rest = train.select(np.sort(order[:count])), train.select(np.sort(order[count:]))
    if not held_out.objects or not rest.objects:
        raise ValueError(f"{len(train)} training images are too few to choose among rates: give one --detect-lr")
    tried: dict[float, float | None] = {}
    for rate in options.detect_lr:
        try:
            model = train_detector(backbone, rest, rate, options, out / f"detect-lr{rate:g}.ckpt")
            tried[rate] = score_detector(model, held_out, options, backbone.channels)[options.detect_task]["AP"]
        except DivergedError:
            tried[rate] = None
        shown = "diverged" if tried[rate] is None else f"AP {100 * (tried[rate] or 0.0):.1f}"
        console.print(f"rate {rate:g}: {shown} on {count} training images held out", highlight=False)
    return tried


def _protocol(options: DetectOptions, rate: float) -> str:
    name = "Mask R-CNN C4" if options.detect_task == "masks" else "Faster R-CNN C4"
    norm = "statistics of pretraining" if options.detect_norm == "frozen" else "statistics of each batch"
    return (
        f"{name}, {options.detect_size} px, {options.detect_epochs} epochs, batches of {options.detect_batch},"
        f" lr {rate:g} x {options.detect_batch}/16, {norm}"
    )


def _print(console: Console, found: dict[str, Any]) -> None:
    console.print(found["protocol"], highlight=False, soft_wrap=True)
    table = Table("", "AP", "AP50", "AP75")
    for kind, row in found["rows"].items():
        table.add_row(kind, *(f"{100 * row[name]:.1f}" for name in ("AP", "AP50", "AP75")))
    console.print(table)


def detected(case: EvalContext) -> dict[str, Metric]:
    """AP, AP50 and AP75 of boxes and masks, of the subject itself and of what stands beside it."""
    if not isinstance(case.encoder, Backbone):
        return {}  # there is no detector of pixels
    if case.config.detect.boxes is None:
        if "all" in case.config.suite:
            return {}
        raise ValueError("no annotated images to learn detection from: name them with --boxes")
    place = case.out / "detect" / re.sub(r"[^\w.]+", "-", case.name)
    found = detect(case.encoder.to(case.place), case.config.detect, place, case.console)
    said = found["protocol"]
    return {
        f"{kind}_{key}": Metric(scores[key], f"{key} of {kind} ({said})", {"classes": scores["classes"]}, percent=True)
        for kind, scores in found["rows"].items()
        for key in ("AP", "AP50", "AP75")
    }
