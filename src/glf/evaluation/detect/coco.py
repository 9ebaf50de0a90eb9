"""Boxes and outlines in COCO's form: one JSON file for all images of a split."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import UInt8

from glf.evaluation.detect.annotations import (
    AnnotationRoot,
    Annotations,
    CheckedAnnotations,
    Object,
    Scene,
    divided,
    numbers,
    require_files,
)

PUBLISHED = {"train": "train2017", "test": "val2017"}  # whose own test split has no annotations
PLAIN = "annotations/instances.json"


def published(split: str) -> str:
    """Where COCO keeps the annotations of a split."""
    return f"annotations/instances_{PUBLISHED[split]}.json"


def read_coco(place: AnnotationRoot, split: str, seed: int) -> Annotations:
    """One split as published, or the one of ``annotations/instances.json``, divided by the seed.

    Classes are the file's categories by their ids. Objects with ``iscrowd`` are neither learnt from nor counted.
    """
    plain = not any(published(name) in place for name in PUBLISHED)
    file, folder = (PLAIN, "images") if plain else (published(split), PUBLISHED[split])
    if file not in place:
        raise ValueError(f"{place.path} has no {file}")
    content = _parse(place, file)
    classes, labels = _classes(content, file)
    checked = CheckedAnnotations()
    scenes = _scenes(content, labels, folder, file, checked)
    require_files(place, [scene.name for scene in scenes], file)
    if plain:
        scenes = divided(scenes, split, seed, place.path)
    return Annotations(place=place, classes=classes, scenes=scenes, notes=checked.notes())


def _parse(place: AnnotationRoot, file: str) -> dict[str, list[dict[str, Any]]]:
    try:
        content = json.loads(place.read(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{place.path / file}, line {error.lineno}: no JSON ({error.msg})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{place.path / file} is no JSON ({error})") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f"{place.path / file} has no list of {key}: is it in COCO's form?")
    for key in ("images", "categories"):
        if not content[key]:
            raise ValueError(f"the list of {key} in {place.path / file} is empty")
    return dict(content)


def _classes(content: dict[str, list[dict[str, Any]]], file: str) -> tuple[tuple[str, ...], dict[Any, int]]:
    """Names in the order of their ids, and the label of each id."""
    categories = sorted(_by_id(content["categories"], "category", file).items())
    labels = {identity: i for i, (identity, _) in enumerate(categories, start=1)}
    return tuple(str(category.get("name", identity)) for identity, category in categories), labels


def _by_id(entries: Iterable[dict[str, Any]], kind: str, file: str) -> dict[Any, dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), int):
            raise ValueError(f"{kind} number {i} of {file} has no id that is a whole number")
        if entry["id"] in found:
            raise ValueError(f"two entries of {file} are {kind} {entry['id']}: ids must differ")
        found[entry["id"]] = entry
    return found


def _scenes(
    content: dict[str, list[dict[str, Any]]],
    labels: dict[Any, int],
    folder: str,
    file: str,
    checked: CheckedAnnotations,
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
            raise ValueError(f"{called} is about image {one.get('image_id')!r}, which the file does not have")
        if one.get("category_id") not in labels:
            known = " ".join(str(key) for key in list(labels)[:10])
            raise ValueError(f"{called} has the category {one.get('category_id')!r}; known are {known}")
        image = images[one["image_id"]]
        x, y, width, height = numbers(one.get("bbox"), 4, called)
        box = checked.box(called, (x, y, x + width, y + height), image["width"], image["height"])
        if box is not None:
            outline, crowd = one.get("segmentation"), bool(one.get("iscrowd", 0))
            found = Object(name=called, box=box, label=labels[one["category_id"]], crowd=crowd, outline=outline)
            objects[one["image_id"]].append(found)
    return [
        Scene(
            name=f"{folder}/{image['file_name']}",
            height=image["height"],
            width=image["width"],
            objects=tuple(objects[identity]),
        )
        for identity, image in images.items()
    ]


def mask(one: Object, height: int, width: int) -> UInt8[np.ndarray, "{height} {width}"]:
    """1 inside an object's outline: polygons, or run lengths, compressed or not.

    >>> square = Object(name="a", box=(1, 1, 3, 3), label=1, outline=[[1, 1, 3, 1, 3, 3, 1, 3]])
    >>> mask(square, 4, 4).tolist()
    [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    """
    from pycocotools import mask as coco

    outline = one.outline
    try:
        if isinstance(outline, dict):
            if list(outline["size"]) != [height, width]:
                raise ValueError(f"run lengths for {outline['size']} in an image of {[height, width]}")
            runs = coco.frPyObjects(outline, height, width) if isinstance(outline["counts"], list) else outline
        else:
            if not outline or any(len(polygon) < 6 or len(polygon) % 2 for polygon in outline):
                raise ValueError("a polygon has at least three corners, x and y of each")
            runs = coco.merge(coco.frPyObjects(outline, height, width))
        decoded: np.ndarray = coco.decode(runs)
    except Exception as error:  # pycocotools raises almost any exception on a broken outline
        shown = repr(outline) if len(repr(outline)) < 60 else f"{repr(outline)[:57]}..."
        raise ValueError(f"{one.name} has no usable outline, {shown} ({error})") from error
    return decoded
