"""Boxes and segmentations in COCO format: one JSON file for all images of a split."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import UInt8

from glf.evaluation.detect.annotations import (
    AnnotationRoot,
    Annotations,
    BoxClipper,
    Object,
    Scene,
    four_numbers,
    random_split,
    require_images,
)

PUBLISHED = {"train": "train2017", "test": "val2017"}  # COCO's own test split has no public annotations
OWN_FILE = "annotations/instances.json"


def is_coco(root: AnnotationRoot) -> bool:
    """Whether the files are those of COCO as published, or a single annotations/instances.json."""
    return OWN_FILE in root or any(_published_file(split) in root for split in PUBLISHED)


def read_coco(root: AnnotationRoot, split: str, seed: int) -> Annotations:
    """Read one split as published, or of ``annotations/instances.json``, split by the seed.

    Classes are the categories of the file, sorted by id. Objects with ``iscrowd`` are ignored.
    """
    own = not any(_published_file(name) in root for name in PUBLISHED)
    file, folder = (OWN_FILE, "images") if own else (_published_file(split), PUBLISHED[split])
    if file not in root:
        raise ValueError(f"{root.path} has no {file}")
    content = _parse(root, file)
    categories = sorted(_by_id(content["categories"], "category", file).items())
    classes = tuple(str(category.get("name", identity)) for identity, category in categories)
    labels = {identity: i for i, (identity, _) in enumerate(categories, start=1)}
    clipper = BoxClipper()
    scenes = _scenes(content, labels, folder, file, clipper)
    require_images(root, scenes, file)
    if own:
        scenes = random_split(scenes, split, seed, root.path)
    return Annotations(root=root, classes=classes, scenes=scenes, notes=clipper.notes())


def _published_file(split: str) -> str:
    return f"annotations/instances_{PUBLISHED[split]}.json"


def _parse(root: AnnotationRoot, file: str) -> dict[str, list[dict[str, Any]]]:
    try:
        content = json.loads(root.read(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{root.path / file}, line {error.lineno}: not valid JSON ({error.msg})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{root.path / file} is not valid JSON ({error})") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f"{root.path / file} has no list of {key}: is it in COCO format?")
    for key in ("images", "categories"):
        if not content[key]:
            raise ValueError(f"the list of {key} in {root.path / file} is empty")
    return dict(content)


def _by_id(entries: Iterable[dict[str, Any]], kind: str, file: str) -> dict[Any, dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int):
            raise ValueError(f"{kind} number {i} of {file} has no integer id")
        if entry["id"] in found:
            raise ValueError(f"two entries of {file} are {kind} {entry['id']}: ids must differ")
        found[entry["id"]] = entry
    return found


def _scenes(
    content: dict[str, list[dict[str, Any]]], labels: dict[Any, int], folder: str, file: str, clipper: BoxClipper
) -> list[Scene]:
    images = _by_id(content["images"], "image", file)
    for identity, image in images.items():
        sides = [image.get("width"), image.get("height")]
        if not image.get("file_name") or not all(isinstance(side, int) and side > 0 for side in sides):
            raise ValueError(f"image {identity} of {file} needs a file_name, and a width and height above 0")
    objects: dict[Any, list[Object]] = {identity: [] for identity in images}
    for identity, one in _by_id(content["annotations"], "annotation", file).items():
        called = f"annotation {identity} of {file}"
        if one.get("image_id") not in images:
            raise ValueError(f"{called} has the image_id {one.get('image_id')!r}, which is not in the list of images")
        if one.get("category_id") not in labels:
            known = " ".join(str(key) for key in list(labels)[:10])
            raise ValueError(f"{called} has the category {one.get('category_id')!r}; known are {known}")
        image = images[one["image_id"]]
        x, y, width, height = four_numbers(one.get("bbox"), called)
        box = clipper.clip(called, (x, y, x + width, y + height), image["width"], image["height"])
        if box is not None:
            objects[one["image_id"]].append(
                Object(
                    name=called,
                    box=box,
                    label=labels[one["category_id"]],
                    crowd=bool(one.get("iscrowd", 0)),
                    segmentation=one.get("segmentation"),
                )
            )
    return [
        Scene(
            name=f"{folder}/{image['file_name']}",
            height=image["height"],
            width=image["width"],
            objects=tuple(objects[identity]),
        )
        for identity, image in images.items()
    ]


def decode_mask(one: Object, height: int, width: int) -> UInt8[np.ndarray, "{height} {width}"]:
    """Binary mask of an object from polygons or from run lengths, compressed or not.

    >>> square = Object(name="a", box=(1, 1, 3, 3), label=1, segmentation=[[1, 1, 3, 1, 3, 3, 1, 3]])
    >>> decode_mask(square, 4, 4).tolist()
    [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    from pycocotools import mask as coco

    given = one.segmentation
    try:
        if isinstance(given, dict):
            if list(given["size"]) != [height, width]:
                raise ValueError(f"run lengths for {given['size']} in an image of {[height, width]}")
            runs = coco.frPyObjects(given, height, width) if isinstance(given["counts"], list) else given
        else:
            if not given or any(len(polygon) < 6 or len(polygon) % 2 for polygon in given):
                raise ValueError("a polygon needs at least three corners, with x and y of each")
            runs = coco.merge(coco.frPyObjects(given, height, width))
        decoded: np.ndarray = coco.decode(runs)
    except Exception as error:  # pycocotools raises almost any exception on a broken segmentation
        shown = repr(given) if len(repr(given)) < 60 else f"{repr(given)[:57]}..."
        raise ValueError(f"{one.name} has no usable segmentation, {shown} ({error})") from error
    return decoded
