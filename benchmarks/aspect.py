"""How should a photo that is not square become a square: by its centre, squeezed, padded, or half of each?

A pretrained encoder, features as they are, at several image sizes, on two kinds of images:
- photos: COCO photos, most of them 4:3;
- panoramas: the band of each photo, 8:3, that shows the most of its objects.
The figure is the mean overlap (intersection over union) of a photo's categories with those of its five nearest photos.

Cost: two minutes with one thread. Written to benchmarks/results/aspect.json.

    python benchmarks/aspect.py --photos coco228.tar
"""

import argparse
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pages
import torch
from PIL import Image

from glf.data.decode import square
from glf.measure.knn import most_similar
from glf.nn.backbone import Backbone
from glf.nn.pretrained import load_encoder
from glf.result import provenance, write_file

ENCODER, SIZES = "timm:tf_efficientnet_lite0", (96, 128, 224)
NEIGHBOURS = 5
BAND = 8 / 3  # width to height of a panorama
INSIDE = 0.5  # of an object's box must be in the band


def centre(image: Image.Image, size: int) -> Image.Image:
    """The central square."""
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    return image.crop((left, top, left + short, top + short)).resize((size, size), Image.Resampling.BILINEAR)


def squeezed(image: Image.Image, size: int) -> Image.Image:
    """The whole image, its sides scaled differently."""
    return image.resize((size, size), Image.Resampling.BILINEAR)


def padded(image: Image.Image, size: int) -> Image.Image:
    """The whole image, grey bars at its long sides."""
    canvas = Image.new("RGB", (max(image.size),) * 2, (124, 116, 104))
    canvas.paste(image, ((canvas.width - image.width) // 2, (canvas.height - image.height) // 2))
    return canvas.resize((size, size), Image.Resampling.BILINEAR)


def half(image: Image.Image, size: int) -> Image.Image:
    """The rule of glf: the long side is cropped to the geometric mean of both sides, and the rest squeezed."""
    return Image.fromarray(square(np.asarray(image), size))


FORMS: dict[str, Callable[[Image.Image, int], Image.Image]] = {
    "centre": centre, "squeezed": squeezed, "padded": padded, "half": half,
}  # fmt: skip


def features(encoder: Backbone, images: list[Image.Image], form: str, size: int) -> torch.Tensor:
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), 64):
            batch = np.stack([np.asarray(FORMS[form](one, size)) for one in images[start : start + 64]])
            found.append(encoder(torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 255))
    return torch.cat(found)


class Photo(NamedTuple):
    """A photo and its objects: category, and box as left, top, width, height."""

    image: Image.Image
    objects: list[tuple[int, list[float]]]


def read_photos(path: str) -> list[Photo]:
    """COCO photos with at least one object."""
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers() if member.isfile()}
        content = {name: file.read() for name, file in files.items() if file is not None}
    found = json.loads(next(text for name, text in content.items() if name.endswith("instances.json")))
    objects: dict[int, list[tuple[int, list[float]]]] = {}
    for one in found["annotations"]:
        objects.setdefault(one["image_id"], []).append((one["category_id"], one["bbox"]))
    by_name = {Path(name).name: data for name, data in content.items()}
    return [
        Photo(Image.open(io.BytesIO(by_name[Path(one["file_name"]).name])).convert("RGB"), objects[one["id"]])
        for one in found["images"]
        if one["id"] in objects
    ]


def band(photo: Photo) -> Photo:
    """The horizontal band that shows the most objects."""
    height = round(photo.image.width / BAND)

    def inside(top: int) -> list[tuple[int, list[float]]]:
        return [
            (category, box)
            for category, box in photo.objects
            if min(top + height, box[1] + box[3]) - max(top, box[1]) >= INSIDE * box[3]
        ]

    top = max(range(0, max(1, photo.image.height - height + 1), 4), key=lambda at: len(inside(at)))
    return Photo(photo.image.crop((0, top, photo.image.width, top + height)), inside(top))


def overlap(x: torch.Tensor, photos: list[Photo]) -> np.ndarray:
    """For each photo: overlap of its categories with those of its nearest others, on average over these."""
    shown = [{category for category, _ in photo.objects} for photo in photos]
    near = most_similar(x, x, NEIGHBOURS + 1)[1][:, 1:].tolist()
    return np.array(
        [np.mean([len(shown[i] & shown[j]) / len(shown[i] | shown[j]) for j in row]) for i, row in enumerate(near)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", required=True, help="a .tar of COCO photos with instances.json")
    options = parser.parse_args()
    photos = read_photos(options.photos)
    kinds = {"photos": photos, "panoramas": [one for one in map(band, photos) if one.objects]}
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        encoder = load_encoder(ENCODER, size=size).eval()
        for kind, images in kinds.items():
            found = {
                form: overlap(features(encoder, [one.image for one in images], form, size), images) for form in FORMS
            }
            for form, values in found.items():
                difference = values - found["centre"]
                error = difference.std(ddof=1) / len(values) ** 0.5
                figures = {"value": values.mean(), "difference": difference.mean(), "error": error}
                row = {"size": size, "images": kind, "form": form, "count": len(values)}
                rows.append(row | {name: round(float(value), 4) for name, value in figures.items()})
                print(rows[-1], flush=True)
    command = f"python benchmarks/aspect.py --photos {options.photos}"
    content = {"encoder": ENCODER, "rows": rows, **provenance(), "command": command}
    write_file(pages.HERE / "results" / "aspect.json", json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
