"""glf search: the images of a folder that are most similar to a query image."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from glf.config.inference import SearchConfig
from glf.data.decode import decode_alone
from glf.device import torch_device
from glf.files import printable
from glf.inference.common import compute_features, open_encoder
from glf.inference.tables import check_table, write_csv
from glf.measure.knn import most_similar
from glf.nn.features import Encoder, encoding
from glf.ui import say


class Hit(NamedTuple):
    """One image found for a query."""

    query: str
    rank: int
    similarity: float
    path: str


def search(config: SearchConfig, console: Console | None = None) -> list[Hit]:
    """Find the k most similar images of each query, best first; print them, write them if asked, and return them."""
    console = console or Console()
    if len(config.images) < 2:
        given = list(config.images)
        raise ValueError(f"search needs queries and a folder: glf search {config.run} query.jpg photos/ (got {given})")
    *queries, data = config.images
    for query in queries:  # before any image is embedded
        if not Path(query).is_file():
            raise FileNotFoundError(f"no image at {query}: queries are files, and the folder to search comes last")
    if config.out is not None:
        check_table(config.out, "search")
    encoder = open_encoder(config)
    found = compute_features(encoder, data, config, console)
    with encoding(encoder.module, size=encoder.size, device=torch_device(config.device)) as features_of:
        # One by one: there are few, and each is decoded like the images of the folder.
        asked = np.concatenate([features_of([read_query(Path(query), encoder)]) for query in queries])
    k = min(config.k, len(found.paths))
    similarity, neighbours = most_similar(torch.from_numpy(found.features), torch.from_numpy(asked), k)
    hits = [
        Hit(query, rank, round(value, 6), found.paths[index])
        for query, values, indices in zip(queries, similarity.tolist(), neighbours.tolist(), strict=True)
        for rank, (value, index) in enumerate(zip(values, indices, strict=True), start=1)
    ]
    for hit in hits:
        if hit.rank == 1:
            say(console, "", hit.query)
        say(console, f"{hit.rank:4}  {hit.similarity:.4f}  {hit.path}")
    if config.out is not None:
        about = {"model": config.run, "data": data}
        write_csv(config.out, "search", about, Hit._fields, hits)
        say(console, "", f"written   {config.out}")
    return hits


def read_query(path: Path, encoder: Encoder) -> NDArray[np.uint8]:
    """Decode a single file like the searched images; ValueError if it is no image."""
    try:
        pixels = decode_alone(path.read_bytes(), encoder.limits)
        if encoder.channels == 1 and pixels.shape[2] == 3:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]
        return encoder.fitted(pixels)
    except Exception as error:  # PIL's plugins raise almost anything on a broken file
        raise ValueError(f"{printable(str(path))} cannot be read as an image ({error}): give another file") from error
