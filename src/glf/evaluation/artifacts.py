"""Many small pictures in one file: a sheet of tiles, row by row."""
# MERGED DOCS:
# | """What the report shows beside numbers, in artifacts/: a page about a run needs neither data nor checkpoints again."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from glf import result
from glf.data.augment import policies
from glf.data.augment.augment import augment
from glf.data.batches import to_tensor
from glf.data.image_cache import cache_root
from glf.data.images import ImageSet, stratified_sample
from glf.evaluation.context import EvalContext
from glf.files import atomic_write
from glf.measure.classes import similarities
from glf.measure.geometry import spectrum
from glf.measure.neighbours import most_similar
from glf.measure.outlier_score import neighbour_entropy
from glf.methods import parse
from glf.nn.prior import prior_rows
from glf.types import Batch

QUALITY = 75  # of WebP: a thumbnail's faults are smaller than what scaling it down has cost


def write_sheet(path: Path, pictures: Iterable[UInt8[np.ndarray, "_ _ _"]], side: int) -> dict[str, int]:
    """A WebP of square tiles, none larger than its picture; returns how many there are, in how many columns."""
    found = list(pictures)
    side = min(side, max(found[0].shape[:2]))
    tiles = [thumbnail(picture, side) for picture in found]
    columns = math.ceil(math.sqrt(len(tiles)))
    sheet = Image.new("RGB", (columns * side, math.ceil(len(tiles) / columns) * side))
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (place % columns * side, place // columns * side))
    with atomic_write(path) as partial:
        sheet.save(partial, "WEBP", quality=QUALITY, method=6)
    return {"count": len(tiles), "columns": columns, "side": side}


def thumbnail(picture: UInt8[np.ndarray, "height width channel"], side: int) -> Image.Image:
    """The whole picture as a square."""
    image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
    return image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)


FOLDER, FILE = "artifacts", "report.json"
MAPPED, DOT = 1_000, 32  # test images on the map, and the side of their thumbnails
SIDE = 64  # of all other thumbnails
QUERIES, NEAR = 12, 8
SEEN, EACH = 6, 6  # training images of which views are shown, and how many
OUTLIERS, COMPANIONS = 24, 256
VALUES = 256  # of a spectrum
BINS = 80
CLUSTERS = 10  # where there are no classes to colour the map by


def outline(case: EvalContext) -> dict[str, Any]:
    """The curves of one column: its spectrum, and how similar images of one and of two classes are."""
    rows = _mapped(case)
    features = case.test[rows].cpu()
    shares = spectrum(features)[:VALUES]
    found: dict[str, Any] = {"spectrum": [float(f"{value:.3g}") for value in shares]}
    if case.target.labelled:
        kinds = zip(("same", "different"), similarities(features, case.test_labels[rows].cpu(), BINS), strict=True)
        found["similarity"] = {name: [round(float(share), 5) for share in shares] for name, shares in kinds}
    return found


def write_artifacts(case: EvalContext, columns: dict[str, Any]) -> None:
    """Map, neighbours, views and likely outliers of a case; what cannot be made is left out, and said."""
    folder = case.out / FOLDER
    content = {"schema": result.SCHEMA, "split": case.target.split, "columns": columns}
    parts = {"map": _map, "neighbours": _neighbours, "views": _views, "outliers": _outliers}
    if not case.config.run.is_dir():  # how others have augmented their images is not known
        del parts["views"]
    for name, make in parts.items():
        try:
            content[name] = make(case, folder)
        except (ValueError, LookupError, OSError) as error:
            case.console.print(f"no {name} for the report: {error}", highlight=False, markup=False, soft_wrap=True)
    result.write(folder / FILE, json.dumps(content) + "\n")


def _mapped(case: EvalContext) -> np.ndarray:
    """Test images that stand for all, classes in proportion."""
    targets = case.target.test.targets
    return stratified_sample(targets, min(MAPPED, len(targets)), case.config.seed)


def _map(case: EvalContext, folder: Path) -> dict[str, Any]:
    """Two coordinates of unit features by t-SNE, and what to colour them by."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    images, rows = case.target.test, _mapped(case)
    features = F.normalize(case.test[rows].cpu(), dim=1).numpy()
    if len(rows) < 5 or features.std(0).max() < 1e-5:
        raise ValueError(f"{len(rows)} images whose features are all but one point cannot be laid out")
    few = PCA(min(50, *features.shape), random_state=0).fit_transform(features)
    places = TSNE(init="pca", perplexity=min(30.0, (len(rows) - 1) / 3), random_state=0).fit_transform(few)
    groups, names, by = images.targets[rows], list(images.classes), "class"
    if not images.labelled:
        count = min(CLUSTERS, len(rows) // 2)
        groups, by = KMeans(count, n_init=4, random_state=0).fit_predict(few), "cluster"
        names = [f"cluster {number + 1}" for number in range(count)]
    return {
        "points": np.round(_centred(places), 4).tolist(),
        "group": groups.tolist(),
        "groups": names,
        "by": by,
        "rows": rows.tolist(),
        "sheet": write_sheet(folder / "map.webp", images.pixels[rows], DOT),
    }


def _centred(places: np.ndarray) -> np.ndarray:
    """Within the unit square, in the proportions that they have."""
    low, high = places.min(0), places.max(0)
    centred: np.ndarray = 0.5 + (places - (low + high) / 2) / max(float((high - low).max()), 1e-9)
    return centred


def _neighbours(case: EvalContext, folder: Path) -> dict[str, Any]:
    """Some test images, drawn and not chosen, each with the training images that are most similar to it."""
    test, train = case.target.test, case.target.train
    queries = stratified_sample(test.targets, min(QUERIES, len(test)), case.config.seed + 1)
    itself = case.target.split == "train"  # every image's nearest is itself then
    found = most_similar(case.train, case.test[queries], min(NEAR + itself, len(train)))
    similarity, near = (values[:, int(itself) :].cpu() for values in found)
    pictures = [
        picture
        for query, rows in zip(queries, near.numpy(), strict=True)
        for picture in (test.pixels[[query]][0], *train.pixels[rows])
    ]
    rows_of = [
        {
            **_named(test, int(query)),
            "near": [
                {**_named(train, int(row)), "similarity": round(float(value), 3)}
                for row, value in zip(rows, values, strict=True)
            ],
        }
        for query, rows, values in zip(queries, near, similarity, strict=True)
    ]
    return {"queries": rows_of, "sheet": write_sheet(folder / "neighbours.webp", pictures, SIDE)}


def _views(case: EvalContext, folder: Path) -> dict[str, Any]:
    """Training images as they are, and as the run saw them."""
    trained, images = case.target.trained, case.target.train
    name = trained.augment or parse(trained.method).augment
    recipe, rows = policies.policy(name), stratified_sample(images.targets, min(SEEN, len(images)), case.config.seed)
    generator, number = torch.Generator().manual_seed(case.config.seed), torch.from_numpy(rows)
    pixels = images.pixels[rows]
    seen: list[Tensor] = []
    while len(seen) < EACH:
        batch = Batch(to_tensor(pixels), number, number, None)
        seen += augment(batch, recipe, case.target.backbone.image_size, generator, trained.colours).x
    as_bytes = [(x * 255).round().byte().permute(0, 2, 3, 1).numpy() for x in seen[:EACH]]
    pictures = [picture for i in range(len(rows)) for picture in (pixels[i], *(view[i] for view in as_bytes))]
    shown = [_named(images, int(row)) for row in rows]
    return {"recipe": name, "images": shown, "sheet": write_sheet(folder / "views.webp", pictures, SIDE)}


def _outliers(case: EvalContext, folder: Path) -> dict[str, Any]:
    """The training images whose row of the prior is flattest, and the entropies of all."""
    trained, images = case.target.trained, case.target.train
    used = "prior" in parse(trained.method, trained.adc).build(**trained.options).needs
    prior = trained.prior if used and case.config.data is None else "pixels"
    rows = prior_rows(
        prior,
        images,
        cache=cache_root() / "prior",
        width=trained.prior_width,
        weights=trained.prior_weights,
        size=trained.prior_size,
        device=case.place,
    )
    entropy = neighbour_entropy(
        torch.from_numpy(np.array(rows)),
        rho=trained.adc.rho,
        effective_dim=trained.adc.prior_effective_dim,
        companions=COMPANIONS,
    )
    flattest = entropy.argsort(descending=True)[:OUTLIERS].numpy()
    largest = math.log(min(COMPANIONS, len(images) - 1))
    counts, _ = np.histogram(entropy.numpy(), BINS, (0, max(largest, 1e-9)))
    return {
        "prior": prior,
        "images": len(images),
        "companions": min(COMPANIONS, len(images) - 1),
        "largest": round(largest, 4),
        "median": round(float(entropy.median()), 4),
        "histogram": counts.tolist(),
        "found": [{**_named(images, int(row)), "entropy": round(float(entropy[row]), 4)} for row in flattest],
        "sheet": write_sheet(folder / "outliers.webp", images.pixels[flattest], SIDE),
    }


def _named(images: ImageSet, row: int) -> dict[str, Any]:
    """Where an image stands in its set, and its class if it has one."""
    label = int(images.targets[row])
    return {"row": row, "class": images.classes[label] if 0 <= label < len(images.classes) else None}
