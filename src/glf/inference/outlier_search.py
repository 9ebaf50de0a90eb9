"""glf outliers: images that are like no others, and images that are nearly the same."""

from typing import NamedTuple

import torch
from rich.console import Console

from glf.config.inference import OutliersConfig
from glf.files import printable
from glf.inference.common import compute_features, open_encoder, write_csv
from glf.measure.duplicates import near_duplicates
from glf.measure.outlier_score import neighbour_entropy


class ScoredImage(NamedTuple):
    """One image."""

    path: str
    entropy: float  # of its row among random companions, in nats: high where it is like no others
    outlier: bool  # among the so many that were asked for
    group: int | None  # of near-duplicates, if it is in one
    similarity: float | None  # to the nearest in its group


def outliers(config: OutliersConfig, console: Console | None = None) -> list[ScoredImage]:
    """Every image, likely outliers first; printed as far as it is of interest, written, and returned."""
    console = console or Console()
    found = compute_features(open_encoder(config), config.data, config, console)
    if len(found.rows) < 3:
        raise ValueError(f"{len(found.rows)} images are too few to say which is unlike the others: three at least")
    rows = torch.from_numpy(found.rows)
    entropy = neighbour_entropy(rows).tolist()
    groups, similarity = near_duplicates(rows, config.similarity)
    order = sorted(range(len(rows)), key=lambda row: -entropy[row])
    judged = [
        ScoredImage(
            found.paths[row],
            round(entropy[row], 4),
            rank < config.count,
            int(groups[row]) if groups[row] > 0 else None,
            round(float(similarity[row]), 6) if groups[row] > 0 else None,
        )
        for rank, row in enumerate(order)
    ]
    _print(console, judged, config)
    write_csv(config.out, ScoredImage._fields, judged)
    console.print(f"\nwritten   {config.out}: every image", highlight=False, markup=False, soft_wrap=True)
    return judged


def _print(console: Console, judged: list[ScoredImage], config: OutliersConfig) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"\nlikely outliers: the entropy of the prior's row, in nats (mean {_mean(judged):.3f})")
    for one in judged:
        if one.outlier:
            say(f"  {one.entropy:.3f}  {printable(one.path)}")
    members: dict[int, list[ScoredImage]] = {}
    for one in judged:
        if one.group is not None:
            members.setdefault(one.group, []).append(one)
    say(f"\nnear-duplicates: {len(members):,} groups of images with a cosine of {config.similarity:g} or more")
    for group in sorted(members)[: config.count]:
        say(f"  group {group}")
        for one in sorted(members[group], key=lambda one: one.path):
            say(f"    {one.similarity:.4f}  {printable(one.path)}")
    if len(members) > config.count:
        say(f"  and {len(members) - config.count:,} more")


def _mean(judged: list[ScoredImage]) -> float:
    return sum(one.entropy for one in judged) / len(judged)
