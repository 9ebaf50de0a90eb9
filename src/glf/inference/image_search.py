"""glf search: the images of a folder that are most like a given one."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console

from glf.config.inference import SearchConfig
from glf.data.photos import read_one
from glf.device import torch_device
from glf.files import printable
from glf.inference.common import compute_features, open_encoder, write_csv
from glf.measure.knn import most_similar
from glf.nn.embedded import Embedded, Encoder
from glf.nn.features import encoding


class Hit(NamedTuple):
    """One line of the answer."""

    query: str
    rank: int
    similarity: float
    path: str


def search(config: SearchConfig, console: Console | None = None) -> list[Hit]:
    """The k most similar images of each query, best first; printed, written if that is asked for, and returned."""
    console = console or Console()
    if len(config.images) < 2:
        given = list(config.images)
        raise ValueError(f"say what to look for and where: glf search {config.run} query.jpg photos/ (got {given})")
    *queries, photos = config.images
    for query in queries:  # before any image is embedded
        if not Path(query).is_file():
            raise FileNotFoundError(f"no image at {query}: queries are files, and what is searched comes last")
    encoder = open_encoder(config)
    found = compute_features(encoder, photos, config, console)
    k = min(config.k, len(found.rows))
    asked = torch.from_numpy(_rows_of_queries(queries, encoder, found, config))
    similarity, which = most_similar(torch.from_numpy(found.rows), asked, k)
    hits = [
        Hit(query, rank, round(value, 6), found.paths[row])
        for query, values, rows in zip(queries, similarity.tolist(), which.tolist(), strict=True)
        for rank, (value, row) in enumerate(zip(values, rows, strict=True), start=1)
    ]
    for hit in hits:
        if hit.rank == 1:
            console.print(f"\n{printable(hit.query)}", highlight=False, markup=False, soft_wrap=True)
        line = f"{hit.rank:4}  {hit.similarity:.4f}  {printable(hit.path)}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if config.out is not None:
        write_csv(config.out, Hit._fields, hits)
        console.print(f"\nwritten   {config.out}", highlight=False, markup=False, soft_wrap=True)
    return hits


def _rows_of_queries(queries: list[str], encoder: Encoder, found: Embedded, config: SearchConfig) -> np.ndarray:
    """Each image on its own: there are few, and they go through the very steps of the folder's."""
    device = torch_device(config.device)
    with encoding(encoder.module, size=encoder.size, device=device) as features_of:
        return np.concatenate([features_of(read_one(Path(query), found.shape)[None]) for query in queries])
