"""A folder or a tar of annotated images, in whichever form: the one function through which boxes come in."""

from pathlib import Path
from typing import Literal, get_args

from glf.evaluation.detect import coco, voc
from glf.evaluation.detect.annotations import AnnotationRoot, Annotations

Split = Literal["train", "test"]
LAYOUTS = (
    "VOCdevkit/VOC2007/{JPEGImages,Annotations,ImageSets/Main}; annotations/instances_{train,val}2017.json with"
    " {train,val}2017/; images/ with Annotations/*.xml; images/ with annotations/instances.json"
)


def read_boxes(path: str | Path, split: Split, *, seed: int = 0) -> Annotations:
    """The annotated images of one split of a Pascal VOC or COCO directory as published, or of one's own.

    Images without splits are divided by the seed, four fifths to train on. Boxes are clipped to their image; those that
    are empty or outside of it are left out; ``notes`` counts both. Anything else that is wrong is an error that names
    the file, and the object in it.
    """
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {get_args(Split)}, got {split!r}")
    place = AnnotationRoot(path=Path(path).expanduser())
    roots = voc.folders(place)
    if roots:
        found = voc.read_voc(place, roots, split, seed)
    elif any(name in place for name in (coco.PLAIN, coco.published("train"), coco.published("test"))):
        found = coco.read_coco(place, split, seed)
    else:
        raise ValueError(f"{path} is in no form that is known: {LAYOUTS}")
    if not found.objects:
        raise ValueError(f"no image of the {split} split of {path} has an object")
    return found
