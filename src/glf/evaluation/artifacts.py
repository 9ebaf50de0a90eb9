"""Data and thumbnails for the report's figures, written to artifacts/, so that a report needs no images or checkpoints.

Thumbnails are stored as sheets: one WebP file with square tiles, row by row.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from glf.data.augment.augment import augment
from glf.data.augment.policies import policy
from glf.data.batches import to_tensor
from glf.data.images import ImageSet, stratified_sample
from glf.evaluation.context import EvalContext
from glf.files import atomic_write
from glf.measure.classes import similarity_histograms
from glf.measure.geometry import spectrum
from glf.measure.knn import most_similar
from glf.measure.outlier_score import neighbour_entropy
from glf.measure.projection import COMPONENTS, pca, tsne
from glf.methods import method_of
from glf.nn.prior import prior_features
from glf.result import RESULT_SCHEMA, write_file
from glf.runfiles import ARTIFACTS, FIGURE_DATA
from glf.types import Batch
from glf.ui import say

MAP_IMAGES, MAP_SIDE = 1_000, 32  # test images on the map, and the side of their thumbnails
SIDE = 64  # side of all other thumbnails
WEBP_QUALITY = 75  # its losses are smaller than those of scaling down
QUERIES, NEIGHBOURS = 12, 8
CHANGED, CHANGED_SIDE = 6, 48  # test images whose neighbours an adaptation changed most, and their thumbnails
VIEWED_IMAGES, VIEWS = 6, 6
OUTLIERS, COMPANIONS = 24, 256
EIGENVALUES = 256
BINS = 80
CLUSTERS = 10  # colours of the map without labels


def write_artifacts(contexts: Sequence[EvalContext]) -> None:
    """Write the curves of all encoders, and the figures of the trained one; report figures that cannot be made."""
    trained = next(context for context in contexts if context.name == "trained")
    folder = trained.out / ARTIFACTS
    content: dict[str, Any] = {
        "schema": RESULT_SCHEMA,
        "split": trained.target.split,
        "columns": {context.name: _curves(context) for context in contexts},
    }
    figures: dict[str, Callable[[], dict[str, Any]]] = {
        "map": partial(_map, trained, folder),
        "neighbours": partial(_neighbours, trained, folder),
        "views": partial(_views, trained, folder),
        "outliers": partial(_outliers, trained, folder),
    }
    if not trained.config.run.is_dir():  # the augmentations of other models are unknown
        del figures["views"]
    frozen = next((one for one in contexts if one.name == "frozen" and one.target is trained.target), None)
    if frozen is not None and not torch.allclose(frozen.test, trained.test, rtol=1e-4, atol=1e-6):
        figures |= {
            "map_frozen": lambda: _map_before(frozen, content),
            "changed": partial(_changed, frozen, trained, folder),
        }
    for name, figure in figures.items():
        if trained.console.is_terminal:
            say(trained.console, f"figures of the report: {name}", style="dim")
        try:
            content[name] = figure()
        except (ValueError, LookupError, OSError) as error:
            say(trained.console, f"no {name} for the report: {error}")
    write_file(folder / FIGURE_DATA, json.dumps(content) + "\n")


def _curves(context: EvalContext) -> dict[str, Any]:
    """Spectrum of the features, and histograms of the similarities within classes and between them."""
    indices = _map_sample(context)
    features = context.test[indices].cpu()
    curves: dict[str, Any] = {"spectrum": [float(f"{value:.3g}") for value in spectrum(features)[:EIGENVALUES]]}
    if context.target.labelled:
        histograms = similarity_histograms(features, context.test_labels[indices].cpu(), BINS)
        curves["similarity"] = {
            name: [round(float(share), 5) for share in histogram]
            for name, histogram in zip(("same", "different"), histograms, strict=True)
        }
    return curves


def _map_sample(context: EvalContext) -> np.ndarray:
    """Indices of a stratified sample of the test images."""
    targets = context.target.test.targets
    return stratified_sample(targets, min(MAP_IMAGES, len(targets)), context.config.seed)


def _map(context: EvalContext, folder: Path) -> dict[str, Any]:
    """Two-dimensional map of unit features, coloured by class, or by cluster without labels."""
    images, indices = context.target.test, _map_sample(context)
    reduced = _reduced(context, indices)
    groups, names, by = images.targets[indices], list(images.classes), "class"
    if not images.labelled:
        from sklearn.cluster import KMeans

        count = min(CLUSTERS, len(indices) // 2)
        groups, by = KMeans(count, n_init=4, random_state=0).fit_predict(reduced), "cluster"
        names = [f"cluster {number + 1}" for number in range(count)]
    return {
        "points": _rounded(_in_unit_square(tsne(reduced))),
        "group": groups.tolist(),
        "groups": names,
        "by": by,
        "rows": indices.tolist(),
        "sheet": _write_sheet(folder / "map.webp", images.pixels[indices], MAP_SIDE),
    }


def _map_before(frozen: EvalContext, content: dict[str, Any]) -> dict[str, Any]:
    """The points of the map with the frozen features, turned so that both can be compared; all else is the same."""
    if "map" not in content:
        raise ValueError("there is no map to compare it with")
    points = tsne(_reduced(frozen, _map_sample(frozen)))
    return {"points": _rounded(_in_unit_square(turned_to(points, np.array(content["map"]["points"]))))}


def _reduced(context: EvalContext, indices: np.ndarray) -> Float[np.ndarray, "image component"]:
    """Principal components of unit features."""
    features = F.normalize(context.test[indices].cpu(), dim=1).numpy()
    if len(indices) < 5 or features.std(0).max() < 1e-5:
        raise ValueError(f"a map needs at least 5 images with distinct features, got {len(indices)} images")
    return pca(features, min(COMPONENTS, *features.shape))


def turned_to(
    points: Float[np.ndarray, "image 2"], others: Float[np.ndarray, "image 2"]
) -> Float[np.ndarray, "image 2"]:
    """Rotate or mirror a map so that its points are as close as possible to those of another one.

    >>> turned_to(np.array([[0.0, 0.0], [0.0, 2.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])).round(6).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    centred, goal = points - points.mean(0), others - others.mean(0)
    left, _, right = np.linalg.svd(centred.T @ goal)
    turned: np.ndarray = centred @ (left @ right)
    return turned


def _in_unit_square(points: Float[np.ndarray, "image 2"]) -> Float[np.ndarray, "image 2"]:
    low, high = points.min(0), points.max(0)
    placed: np.ndarray = 0.5 + (points - (low + high) / 2) / max(float((high - low).max()), 1e-9)
    return placed


def _rounded(points: Float[np.ndarray, "image 2"]) -> list[list[float]]:
    values: list[list[float]] = np.round(points.astype(float), 4).tolist()
    return values


def _neighbours(context: EvalContext, folder: Path) -> dict[str, Any]:
    """Random test images, each with the most similar training images."""
    test, train = context.target.test, context.target.train
    queries = stratified_sample(test.targets, min(QUERIES, len(test)), context.config.seed + 1)
    entries, pictures = [], []
    for query, row, values in zip(queries, *_most_similar(context, queries), strict=True):
        entries.append({**_image(test, int(query)), "near": _near(train, row, values)})
        pictures += [test.pixels[[query]][0], *train.pixels[row]]
    return {"queries": entries, "sheet": _write_sheet(folder / "neighbours.webp", pictures, SIDE)}


def _changed(frozen: EvalContext, trained: EvalContext, folder: Path) -> dict[str, Any]:
    """The test images that share the fewest neighbours with the frozen encoder, with both lists of neighbours."""
    test, train = trained.target.test, trained.target.train
    sample = np.random.default_rng(trained.config.seed).permutation(_map_sample(trained))  # so that ties are drawn
    (old, old_cosines), (new, new_cosines) = (_most_similar(context, sample) for context in (frozen, trained))
    kept = (old[:, :, None] == new[:, None, :]).any(2).sum(1)
    entries, pictures = [], []
    for i in np.argsort(kept, kind="stable")[:CHANGED]:
        before, after = _near(train, old[i], old_cosines[i]), _near(train, new[i], new_cosines[i])
        entries.append({**_image(test, int(sample[i])), "kept": int(kept[i]), "before": before, "after": after})
        pictures += [test.pixels[[sample[i]]][0], *train.pixels[old[i]], *train.pixels[new[i]]]
    return {
        "images": len(sample),
        "neighbours": old.shape[1],
        "kept": round(float(kept.mean()) / max(1, old.shape[1]), 4),
        "queries": entries,
        "sheet": _write_sheet(folder / "changed.webp", pictures, CHANGED_SIDE),
    }


def _most_similar(context: EvalContext, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices and cosines of the training images that are most similar to some test images."""
    skip = int(context.target.split == "train")  # the nearest image is then the query itself
    count = min(NEIGHBOURS + skip, len(context.target.train))
    cosines, indices = most_similar(context.train, context.test[queries], count)
    return indices[:, skip:].cpu().numpy(), cosines[:, skip:].cpu().numpy()


def _near(images: ImageSet, indices: np.ndarray, cosines: np.ndarray) -> list[dict[str, Any]]:
    pairs = zip(indices, cosines, strict=True)
    return [{**_image(images, int(index)), "similarity": round(float(cosine), 3)} for index, cosine in pairs]


def _views(context: EvalContext, folder: Path) -> dict[str, Any]:
    """Training images, each with augmented views as in pretraining."""
    pretraining, images, seed = context.target.pretraining, context.target.train, context.config.seed
    name = pretraining.augment or method_of(pretraining).augment
    indices = stratified_sample(images.targets, min(VIEWED_IMAGES, len(images)), seed)
    pixels, numbers = images.pixels[indices], torch.from_numpy(indices)
    generator = torch.Generator().manual_seed(seed)
    size = context.target.backbone.image_size
    views: list[Tensor] = []
    while len(views) < VIEWS:
        batch = Batch(to_tensor(pixels), numbers, numbers, None)
        views += augment(batch, policy(name), size, generator, pretraining.colours).x
    as_bytes = [(x * 255).round().byte().permute(0, 2, 3, 1).numpy() for x in views[:VIEWS]]
    pictures = [picture for i in range(len(indices)) for picture in (pixels[i], *(view[i] for view in as_bytes))]
    return {
        "recipe": name,
        "images": [_image(images, int(index)) for index in indices],
        "sheet": _write_sheet(folder / "views.webp", pictures, SIDE),
    }


def _outliers(context: EvalContext, folder: Path) -> dict[str, Any]:
    """The training images with the flattest neighbour distributions under the prior, and the entropies of all."""
    pretraining, images = context.target.pretraining, context.target.train
    has_prior = "prior" in method_of(pretraining).build(**pretraining.options).needs
    prior = pretraining.prior if has_prior and context.config.data is None else "pixels"
    features = prior_features(replace(pretraining, prior=prior, download=False), images, device=context.device)
    entropy = neighbour_entropy(
        torch.from_numpy(np.array(features)),
        rho=pretraining.adc.rho,
        effective_dim=pretraining.adc.prior_effective_dim,
        companions=COMPANIONS,
    )
    companions = min(COMPANIONS, len(images) - 1)
    largest = math.log(companions)
    counts, _ = np.histogram(entropy.numpy(), BINS, (0, max(largest, 1e-9)))
    flattest = entropy.argsort(descending=True)[:OUTLIERS].numpy()
    return {
        "prior": prior,
        "images": len(images),
        "companions": companions,
        "largest": round(largest, 4),
        "median": round(float(entropy.median()), 4),
        "histogram": counts.tolist(),
        "found": [{**_image(images, int(index)), "entropy": round(float(entropy[index]), 4)} for index in flattest],
        "sheet": _write_sheet(folder / "outliers.webp", images.pixels[flattest], SIDE),
    }


def _image(images: ImageSet, index: int) -> dict[str, Any]:
    """Index and class of an image."""
    label = int(images.targets[index])
    return {"row": index, "class": images.classes[label] if 0 <= label < len(images.classes) else None}


def _write_sheet(path: Path, pictures: Iterable[UInt8[np.ndarray, "_ _ _"]], side: int) -> dict[str, int]:
    """Write square tiles, none larger than the first picture; return their number, columns and side."""
    images = [Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture) for picture in pictures]
    side = min(side, max(images[0].size))
    columns = math.ceil(math.sqrt(len(images)))
    sheet = Image.new("RGB", (columns * side, math.ceil(len(images) / columns) * side))
    for i, image in enumerate(images):
        tile = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        sheet.paste(tile, (i % columns * side, i // columns * side))
    with atomic_write(path) as partial:
        sheet.save(partial, "WEBP", quality=WEBP_QUALITY, method=6)
    return {"count": len(images), "columns": columns, "side": side}
