"""Scenes with known boxes and masks, made of real images: clothes pasted on crops of photographs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco
from sklearn.datasets import load_sample_images

from glf.data.sources import load_images

CLASSES = {"Trouser": 1, "Bag": 8, "Ankle boot": 9}  # of Fashion-MNIST
SIDE = 160


def scenes(
    count: int, part: str, side: int = SIDE, grey: bool = False
) -> list[tuple[np.ndarray, list[tuple[int, np.ndarray]]]]:
    """Images, each with (label, mask) of one to five items that do not overlap; the parts share no items and no crops.

    Items are those of Fashion-MNIST's training or test split, 32 to 64 px; backgrounds are crops of the left or the
    right half of two photographs.
    """
    random = np.random.default_rng(["train", "test"].index(part))
    clothes = load_images("fashion-mini", "train" if part == "train" else "test")
    rows = {label: np.flatnonzero(clothes.targets == label) for label in CLASSES.values()}
    photos = load_sample_images().images
    made = []
    for _ in range(count):
        photo = photos[random.integers(2)]
        half = photo[:, :320] if part == "train" else photo[:, 320:]
        top, left = random.integers(half.shape[0] - side), random.integers(half.shape[1] - side)
        image = half[top : top + side, left : left + side].copy()
        objects: list[tuple[int, np.ndarray]] = []
        taken = np.zeros((side, side), bool)
        for _ in range(random.integers(2, 6)):
            label = int(random.choice(list(CLASSES.values())))
            item = clothes.pixels[random.choice(rows[label]), :, :, 0]
            size = int(random.integers(min(32, side // 3), min(64, side // 2) + 1))
            item = np.asarray(Image.fromarray(item).resize((size, size), Image.Resampling.BILINEAR))
            shape = np.zeros((side, side), bool)
            y, x = random.integers(0, side - size + 1, 2)
            shape[y : y + size, x : x + size] = item > 24
            ys, xs = np.nonzero(shape)
            box = np.s_[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
            if taken[box].any():
                continue
            taken[box] = True
            patch = image[y : y + size, x : x + size]
            patch[item > 24] = item[item > 24][:, None]
            objects.append((list(CLASSES.values()).index(label) + 1, shape))
        made.append((np.asarray(Image.fromarray(image).convert("L")) if grey else image, objects))
    return made


def write_coco(
    folder: Path, made: Sequence[tuple[np.ndarray, list[tuple[int, np.ndarray]]]], *, images: str, json_name: str
) -> dict[str, Any]:
    """Write the scenes in COCO format, masks as run lengths; return the content of the JSON file."""
    (folder / images).mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 10 * i, "name": name} for i, name in enumerate(CLASSES, start=1)],
    }
    for number, (pixels, objects) in enumerate(made, start=1):
        Image.fromarray(pixels).save(folder / images / f"{number:04}.png")
        height, width = pixels.shape[:2]
        content["images"].append({"id": number, "file_name": f"{number:04}.png", "width": width, "height": height})
        for label, shape in objects:
            runs = coco.encode(np.asfortranarray(shape.astype(np.uint8)))
            content["annotations"].append(
                {
                    "id": len(content["annotations"]) + 1,
                    "image_id": number,
                    "category_id": 10 * label,
                    "bbox": coco.toBbox(runs).tolist(),
                    "segmentation": {"size": [height, width], "counts": runs["counts"].decode()},
                    "iscrowd": 0,
                }
            )
    path = folder / "annotations" / json_name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1))
    return content
