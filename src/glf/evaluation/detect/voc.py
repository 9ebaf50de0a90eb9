"""Boxes in Pascal VOC format: one XML file per image, and lists of image names for the splits."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from xml.etree import ElementTree

from glf.data.decode import EXTENSIONS
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

_ANNOTATION = re.compile(r"((?:VOCdevkit/)?(?:VOC\d{4}/)?)Annotations/[^/]+\.xml")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class _Xml(NamedTuple):
    name: str  # of the file
    width: int
    height: int
    objects: list[tuple[str, str, list[float], bool]]  # name for messages, class, corners, difficult


def voc_folders(root: AnnotationRoot) -> list[str]:
    """Folders that contain Annotations/, each with its slash; one per year of VOC."""
    return sorted({match[1] for match in map(_ANNOTATION.fullmatch, root.files) if match})


def read_voc(root: AnnotationRoot, folders: Sequence[str], split: str, seed: int) -> Annotations:
    """Read one split of all folders together.

    The splits are trainval and test; or train and val where no folder has a test list; or a random split without lists.
    VOC counts pixels from 1 and includes the last one: x0 is xmin - 1 and x1 is xmax. Objects marked ``difficult`` are
    ignored. Classes are those of both splits, sorted by name.
    """
    images = {PurePosixPath(name).with_suffix("").as_posix(): name for name in root.matching("", EXTENSIONS)}
    listed = _split_lists(root, folders)
    if listed is None:
        every = [name for folder in folders for name in root.matching(f"{folder}Annotations/", ".xml")]
        listed = {"train": every, "test": []}
    parsed = {part: [_parse(root, name) for name in names] for part, names in listed.items()}
    classes = sorted({one[1] for part in parsed.values() for xml in part for one in xml.objects})
    without_test = not listed["test"]
    clipper = BoxClipper()
    scenes = [_scene(xml, images, classes, clipper) for xml in parsed["train" if without_test else split]]
    require_images(root, scenes, "Annotations")
    if without_test:
        scenes = random_split(scenes, split, seed, root.path)
    return Annotations(root=root, classes=tuple(classes), scenes=scenes, notes=clipper.notes())


def _split_lists(root: AnnotationRoot, folders: Sequence[str]) -> dict[str, list[str]] | None:
    """XML files of each split, from the lists in ImageSets/Main; None without lists."""
    if not any(root.matching(f"{folder}ImageSets/Main/", ".txt") for folder in folders):
        return None
    tested = [folder for folder in folders if f"{folder}ImageSets/Main/test.txt" in root]
    if tested:
        return {"train": _read_list(root, folders, "trainval"), "test": _read_list(root, tested, "test")}
    return {"train": _read_list(root, folders, "train"), "test": _read_list(root, folders, "val")}


def _read_list(root: AnnotationRoot, folders: Sequence[str], split: str) -> list[str]:
    names: list[str] = []
    for folder in folders:
        file = f"{folder}ImageSets/Main/{split}.txt"
        if file not in root:
            has = " ".join(root.matching(f"{folder}ImageSets/Main/"))
            raise ValueError(f"{root.path} has no {file}: it has {has}")
        lines = root.read(file).decode("utf-8", "replace").splitlines()
        ids = [line.split()[0] for line in lines if line.strip()]
        if not ids:
            raise ValueError(f"{root.path / file} is empty")
        twice = next((name for name, count in Counter(ids).items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"{root.path / file} names {twice} twice")
        missing = [name for name in ids if f"{folder}Annotations/{name}.xml" not in root]
        if missing:
            raise ValueError(
                f"{root.path / file} names {len(missing)} images without XML in {folder}Annotations: {missing[0]}"
            )
        names += [f"{folder}Annotations/{name}.xml" for name in ids]
    return names


def _parse(root: AnnotationRoot, name: str) -> _Xml:
    path = root.path / name
    try:
        tree = ElementTree.fromstring(root.read(name))
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}, line {error.position[0]}: not valid XML ({error})") from error
    try:
        width, height = (int(float(tree.findtext(f"size/{side}") or 0)) for side in ("width", "height"))
    except ValueError:
        width, height = 0, 0
    if width < 1 or height < 1:
        raise ValueError(f"{path} lacks the size of the image: <size><width>...</width><height>...</height></size>")
    objects = []
    for i, node in enumerate(tree.iterfind("object"), start=1):
        called = f"object {i} of {name}"
        label = (node.findtext("name") or "").strip()
        if not label:
            raise ValueError(f"{called} in {root.path} has no <name>")
        corners = four_numbers([node.findtext(f"bndbox/{side}") for side in _CORNERS], f"{called} in {root.path}")
        difficult = (node.findtext("difficult") or "0").strip() not in ("0", "")
        objects.append((called, label, corners, difficult))
    return _Xml(name, width, height, objects)


def _scene(xml: _Xml, images: dict[str, str], classes: list[str], clipper: BoxClipper) -> Scene:
    folder, _, stem = xml.name.removesuffix(".xml").rpartition("Annotations/")
    candidates = [f"{folder}{name}/{stem}" for name in ("JPEGImages", "images")]
    image = next((images[name] for name in candidates if name in images), f"{candidates[0]}.jpg")
    objects = []
    for called, label, (x0, y0, x1, y1), difficult in xml.objects:
        box = clipper.clip(called, (x0 - 1, y0 - 1, x1, y1), xml.width, xml.height)
        if box is not None:
            objects.append(Object(name=called, box=box, label=classes.index(label) + 1, difficult=difficult))
    return Scene(name=image, height=xml.height, width=xml.width, objects=tuple(objects))
