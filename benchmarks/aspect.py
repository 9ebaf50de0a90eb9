"""How should a photo that is not square become a square: by its centre, squeezed, or padded?

Three tasks for a pretrained encoder, features as they are, at several image sizes:
- photos: COCO photos, most of them 4:3. Share of a photo's categories among those of its five nearest neighbours.
- panoramas: COCO photos side by side, so that 3:1 images have something at their ends. The same figure.
- wide: an image of Imagenette at a random place of a 3:1 canvas of clutter. k-NN accuracy (k = 5).

Cost: a minute with one thread. Written to benchmarks/results/aspect.json.

    python benchmarks/aspect.py --photos coco228.tar --images imagenette96.tar
"""

import argparse
import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pages
import torch
from PIL import Image
from torch.nn import functional as F

from glf.data import sources
from glf.data.images import stratified_sample
from glf.measure.knn import knn_predict, most_similar
from glf.nn.backbone import Backbone
from glf.nn.pretrained import load_encoder
from glf.result import provenance, write_file

ENCODER, SIZES = "timm:tf_efficientnet_lite0", (96, 128, 224)
NEIGHBOURS, TRAIN, TEST = 5, 1500, 500


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


FORMS: dict[str, Callable[[Image.Image, int], Image.Image]] = {
    "centre": centre, "squeezed": squeezed, "padded": padded,
}  # fmt: skip


def features(encoder: Backbone, images: list[Image.Image], form: str, size: int) -> torch.Tensor:
    found = []
    with torch.inference_mode():
        for start in range(0, len(images), 64):
            batch = np.stack([np.asarray(FORMS[form](one, size)) for one in images[start : start + 64]])
            found.append(encoder(torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 255))
    return torch.cat(found)


def read_photos(path: str) -> tuple[list[Image.Image], list[set[int]]]:
    """COCO photos, and the categories in each."""
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers() if member.isfile()}
        name = next(one for one in files if one.endswith("instances.json"))
        found = json.loads(files[name].read())  # type: ignore[union-attr]
        categories: dict[int, set[int]] = {}
        for one in found["annotations"]:
            categories.setdefault(one["image_id"], set()).add(one["category_id"])
        photos = []
        for one in found["images"]:
            path_in = next(key for key in files if key.endswith(one["file_name"]))
            photos.append(Image.open(io.BytesIO(files[path_in].read())).convert("RGB"))  # type: ignore[union-attr]
    return photos, [categories.get(one["id"], set()) for one in found["images"]]


def panoramas(photos: list[Image.Image], categories: list[set[int]]) -> tuple[list[Image.Image], list[set[int]]]:
    """Three photos side by side: a panorama shows the categories of all."""
    order = np.random.default_rng(0).permutation(len(photos))
    found, shown = [], []
    for number in range(2 * len(photos)):
        chosen = order[[(number * 3 + i) % len(order) for i in range(3)]] if number < len(photos) else (
            np.random.default_rng(number).choice(len(photos), 3, replace=False)
        )  # fmt: skip
        canvas = Image.new("RGB", (3 * 224, 224))
        for i, one in enumerate(chosen):
            canvas.paste(centre(photos[one], 224), (224 * i, 0))
        found.append(canvas)
        shown.append(set().union(*(categories[one] for one in chosen)))
    return found, shown


def overlap(x: torch.Tensor, categories: list[set[int]]) -> np.ndarray:
    """For each photo: share of its categories that its nearest other photos have, on average over these."""
    near = most_similar(x, x, NEIGHBOURS + 1)[1][:, 1:].tolist()
    return np.array(
        [
            np.mean([len(categories[i] & categories[j]) / len(categories[i] | categories[j]) for j in row])
            for i, row in enumerate(near)
            if categories[i]
        ]
    )


def wide(images: str, photos: list[Image.Image]) -> tuple[list[Image.Image], torch.Tensor]:
    """Images of Imagenette at a random third of a 3:1 canvas; the rest is blurred photos."""
    loaded = sources.load_images(images, "train", size=96)
    rows = stratified_sample(loaded.targets, TRAIN + TEST, 0)
    random = np.random.default_rng(0)
    random.shuffle(rows)
    found = []
    for row in rows:
        canvas = Image.new("RGB", (288, 96))
        for place in range(3):
            clutter = centre(photos[random.integers(len(photos))], 12)
            canvas.paste(clutter.resize((96, 96), Image.Resampling.BICUBIC), (96 * place, 0))
        canvas.paste(Image.fromarray(loaded.pixels[int(row)]), (int(random.integers(0, 193)), 0))
        found.append(canvas)
    return found, torch.from_numpy(loaded.targets[rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", required=True, help="a .tar of COCO photos with instances.json")
    parser.add_argument("--images", required=True, help="as for glf pretrain")
    options = parser.parse_args()
    photos, categories = read_photos(options.photos)
    joined, of_joined = panoramas(photos, categories)
    placed, labels = wide(options.images, photos)
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        encoder = load_encoder(ENCODER, size=size).eval()
        found: dict[str, dict[str, np.ndarray]] = {}
        for form in FORMS:
            x = F.normalize(features(encoder, placed, form, size), dim=1)
            guessed = knn_predict(x[:TRAIN], labels[:TRAIN], x[TRAIN:], 5)
            found[form] = {
                "photos": overlap(features(encoder, photos, form, size), categories),
                "panoramas": overlap(features(encoder, joined, form, size), of_joined),
                "wide": (guessed == labels[TRAIN:]).double().numpy(),
            }
        for task in ("photos", "panoramas", "wide"):
            for form in FORMS:
                values, base = found[form][task], found["centre"][task]
                error = (values - base).std(ddof=1) / len(values) ** 0.5
                figures = {"value": values.mean(), "difference": (values - base).mean(), "error": error}
                row = {"size": size, "task": task, "form": form} | {k: round(float(v), 4) for k, v in figures.items()}
                rows.append(row)
                print(row, flush=True)
    command = f"python benchmarks/aspect.py --photos {options.photos} --images {options.images}"
    content = {"encoder": ENCODER, "rows": rows, **provenance(), "command": command}
    write_file(pages.HERE / "results" / "aspect.json", json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
