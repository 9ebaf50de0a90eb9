"""Boxes in Pascal VOC's form: one XML file for each image, lists of names for the splits."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from xml.etree import ElementTree

from glf.data.decode import EXTENSIONS
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

_ANNOTATION = re.compile(r"((?:VOCdevkit/)?(?:VOC\d{4}/)?)Annotations/[^/]+\.xml")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class _Parsed(NamedTuple):
    name: str  # of the XML file
    width: int
    height: int
    objects: list[tuple[str, str, list[float], bool]]  # how to call it, class, corners, difficult


def folders(place: AnnotationRoot) -> list[str]:
    """The folders that hold Annotations, each with its slash: of several years, when there are several."""
    return sorted({match[1] for match in map(_ANNOTATION.fullmatch, place.files) if match})


def read_voc(place: AnnotationRoot, roots: Sequence[str], split: str, seed: int) -> Annotations:
    """One split, years together: trainval and test; train and val where no year has a test list; divided without lists.

    Corners count pixels from 1 and include the last one, so that x0 is xmin - 1 and x1 is xmax. Objects marked
    ``difficult`` are neither learnt from nor counted. Classes are those of both splits, by name.
    """
    images = {PurePosixPath(name).with_suffix("").as_posix(): name for name in place.below("", EXTENSIONS)}
    listed = _lists(place, roots)
    if listed is None:
        names = [name for root in roots for name in place.below(f"{root}Annotations/", ".xml")]
        listed = {"train": names, "test": []}
    parsed = {part: [_parse(place, name) for name in names] for part, names in listed.items()}
    classes = sorted({one[1] for part in parsed.values() for xml in part for one in xml.objects})
    divide = not listed["test"]
    checked = CheckedAnnotations()
    scenes = [_scene(xml, images, classes, checked) for xml in parsed["train" if divide else split]]
    require_files(place, [scene.name for scene in scenes], "Annotations")
    if divide:
        scenes = divided(scenes, split, seed, place.path)
    return Annotations(place=place, classes=tuple(classes), scenes=scenes, notes=checked.notes())


def _lists(place: AnnotationRoot, roots: Sequence[str]) -> dict[str, list[str]] | None:
    """The XML files of each split by the lists in ImageSets/Main; None where there are no lists."""
    if not any(place.below(f"{root}ImageSets/Main/", ".txt") for root in roots):
        return None
    tested = [root for root in roots if f"{root}ImageSets/Main/test.txt" in place]
    if tested:
        return {"train": _listed(place, roots, "trainval"), "test": _listed(place, tested, "test")}
    return {"train": _listed(place, roots, "train"), "test": _listed(place, roots, "val")}


def _listed(place: AnnotationRoot, roots: Sequence[str], split: str) -> list[str]:
    names: list[str] = []
    for root in roots:
        file = f"{root}ImageSets/Main/{split}.txt"
        if file not in place:
            raise ValueError(f"{place.path} has no {file}: it has {' '.join(place.below(f'{root}ImageSets/Main/'))}")
        lines = place.read(file).decode("utf-8", "replace").splitlines()
        ids = [line.split()[0] for line in lines if line.strip()]
        if not ids:
            raise ValueError(f"{place.path / file} is empty")
        twice = next((name for i, name in enumerate(sorted(ids)[1:]) if name == sorted(ids)[i]), None)
        if twice is not None:
            raise ValueError(f"{place.path / file} names {twice} twice")
        missing = [name for name in ids if f"{root}Annotations/{name}.xml" not in place]
        if missing:
            where = f"{root}Annotations"
            raise ValueError(f"{place.path / file} names {len(missing)} images without XML in {where}: {missing[0]}")
        names += [f"{root}Annotations/{name}.xml" for name in ids]
    return names


def _parse(place: AnnotationRoot, name: str) -> _Parsed:
    path = place.path / name
    try:
        root = ElementTree.fromstring(place.read(name))
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}, line {error.position[0]}: no XML ({error})") from error
    try:
        width, height = (int(float(root.findtext(f"size/{side}") or 0)) for side in ("width", "height"))
    except ValueError:
        width, height = 0, 0
    if width < 1 or height < 1:
        raise ValueError(f"{path} does not say the image's size: <size><width>...</width><height>...</height></size>")
    objects = []
    for i, node in enumerate(root.iterfind("object"), start=1):
        called = f"object {i} of {name}"
        label = (node.findtext("name") or "").strip()
        if not label:
            raise ValueError(f"{called} in {place.path} has no <name>")
        corners = numbers([node.findtext(f"bndbox/{side}") for side in _CORNERS], 4, f"{called} in {place.path}")
        difficult = (node.findtext("difficult") or "0").strip() not in ("0", "")
        objects.append((called, label, corners, difficult))
    return _Parsed(name, width, height, objects)


def _scene(xml: _Parsed, images: dict[str, str], classes: list[str], checked: CheckedAnnotations) -> Scene:
    root, _, stem = xml.name.removesuffix(".xml").rpartition("Annotations/")
    candidates = [f"{root}{folder}/{stem}" for folder in ("JPEGImages", "images")]
    image = next((images[name] for name in candidates if name in images), f"{candidates[0]}.jpg")
    objects = []
    for called, label, (x0, y0, x1, y1), difficult in xml.objects:
        box = checked.box(called, (x0 - 1, y0 - 1, x1, y1), xml.width, xml.height)
        if box is not None:
            objects.append(Object(name=called, box=box, label=classes.index(label) + 1, difficult=difficult))
    return Scene(name=image, height=xml.height, width=xml.width, objects=tuple(objects))
