"""glf outliers: images unlike all others, and groups of nearly identical images."""

from typing import NamedTuple

import torch
from rich.console import Console

from glf.config.inference import OutliersConfig
from glf.inference.common import compute_features, open_encoder
from glf.inference.tables import check_table, write_csv
from glf.measure.duplicates import near_duplicates
from glf.measure.outlier_score import neighbour_entropy
from glf.ui import say


class ScoredImage(NamedTuple):
    """Scores of one image."""

    path: str
    entropy: float  # of its neighbour distribution among random images, in nats: high if it is unlike all others
    outlier: bool  # among the ``count`` most likely ones
    group: int | None  # of near-duplicates, if it is in one
    similarity: float | None  # to the nearest image of its group


def outliers(config: OutliersConfig, console: Console | None = None) -> list[ScoredImage]:
    """Score every image, likely outliers first; print the interesting ones, write and return all."""
    console = console or Console()
    check_table(config.out, "outliers")
    found = compute_features(open_encoder(config), config.data, config, console)
    if len(found.paths) < 3:
        raise ValueError(f"outliers need at least three images, got {len(found.paths)}")
    features = torch.from_numpy(found.features)
    entropy = neighbour_entropy(features).tolist()
    groups, similarity = near_duplicates(features, config.similarity)
    order = sorted(range(len(found.paths)), key=lambda i: -entropy[i])
    images = [
        ScoredImage(
            found.paths[i],
            round(entropy[i], 4),
            rank < config.count,
            int(groups[i]) if groups[i] > 0 else None,
            round(float(similarity[i]), 6) if groups[i] > 0 else None,
        )
        for rank, i in enumerate(order)
    ]
    _print(console, images, config)
    about = {"model": config.run, "data": config.data}
    write_csv(config.out, "outliers", about, ScoredImage._fields, images)
    say(console, "", f"written   {config.out}: all images")
    return images


def _print(console: Console, images: list[ScoredImage], config: OutliersConfig) -> None:
    mean = sum(image.entropy for image in images) / len(images)
    say(console, "", f"likely outliers, by the entropy of their neighbour distribution in nats (mean {mean:.3f})")
    for image in images:
        if image.outlier:
            say(console, f"  {image.entropy:.3f}  {image.path}")
    groups: dict[int, list[ScoredImage]] = {}
    for image in images:
        if image.group is not None:
            groups.setdefault(image.group, []).append(image)
    say(
        console, "", f"near-duplicates: {len(groups):,} groups of images with a cosine of {config.similarity:g} or more"
    )
    for group in sorted(groups)[: config.count]:
        say(console, f"  group {group}")
        for image in sorted(groups[group], key=lambda image: image.path):
            say(console, f"    {image.similarity:.4f}  {image.path}")
    if len(groups) > config.count:
        say(console, f"  and {len(groups) - config.count:,} more")
