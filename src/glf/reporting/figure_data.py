"""artifacts/report.json, the data of the report's pictures, as types; indices are within what they index."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from glf.result import load_json
from glf.schema import Count, Few

Picture = TypedDict("Picture", {"row": Count, "class": str | None})  # an image of the data set


class Near(Picture):
    """A neighbour of a query."""

    similarity: float


class Query(Picture):
    """An image with its neighbours."""

    near: list[Near]


class ChangedQuery(Picture):
    """An image with its neighbours under the frozen encoder and under the adapted one."""

    before: list[Near]
    after: list[Near]


class Scored(Picture):
    """A likely outlier."""

    entropy: float


class Sheet(TypedDict):
    """A sheet of thumbnails."""

    count: Few
    columns: Few


class Gallery(TypedDict):
    """Images on a sheet."""

    sheet: Sheet


class Similarity(TypedDict):
    """Histograms of cosines."""

    same: list[float]
    different: list[float]


class Curves(TypedDict, total=False):
    """Spectrum and similarities of an encoder's features."""

    spectrum: list[float]
    similarity: Similarity


class MapRecord(Gallery):
    """The feature map."""

    points: list[tuple[float, float]]
    group: list[int]
    groups: list[str]
    by: str


class FrozenMap(TypedDict):
    """The map of the encoder before it was adapted."""

    points: list[tuple[float, float]]


class Outliers(Gallery):
    """Likely outliers, and the histogram of all entropies."""

    prior: str
    largest: float
    histogram: list[float]
    found: list[Scored]


class ViewsRecord(Gallery):
    """Augmented images."""

    images: list[Picture]


class NeighboursRecord(Gallery):
    """Images with their nearest neighbours."""

    queries: list[Query]


class Changed(Gallery):
    """Images whose neighbours an adaptation has changed most."""

    images: Count
    neighbours: Count
    kept: float
    queries: list[ChangedQuery]


class FigureData(TypedDict, total=False):
    """The file."""

    split: str
    columns: dict[str, Curves]
    map: MapRecord
    map_frozen: FrozenMap
    neighbours: NeighboursRecord
    changed: Changed
    views: ViewsRecord
    outliers: Outliers


def read_figure_data(path: Path) -> dict[str, Any]:
    """Read the file; ValueError names the key of a value that does not fit its type, or the rest of the file."""
    content = load_json(path, FigureData)
    for wrong in _inconsistencies(content):
        raise ValueError(f"{path} is damaged, or was edited: {wrong}; create it again")
    return content


def _inconsistencies(content: dict[str, Any]) -> Iterator[str]:
    """Indices beyond what they index, lists that should be as long as others, and lists that must not be empty."""
    found = content.get("map")
    if found is not None:
        count, groups = len(found["points"]), len(found["groups"])
        if not count:
            yield "map.points is empty"
        if len(found["group"]) != count:
            yield f"map.group has {len(found['group']):,} entries, and map.points {count:,}"
        for at, group in enumerate(found["group"]):
            if not -1 <= group < groups:
                yield f"map.group.{at} must be from -1 (no label) to {groups - 1}, got {group}"
        if len(content.get("map_frozen", found)["points"]) != count:
            yield f"map_frozen.points should have {count:,} entries, as map.points has"
    if "outliers" in content and not content["outliers"]["histogram"]:
        yield "outliers.histogram is empty"
    if "views" in content and not content["views"]["images"]:
        yield "views.images is empty"
    for name, shown in _shown(content).items():
        if shown > content[name]["sheet"]["count"]:
            yield f"{name}.sheet.count must be at least {shown}, the number of its images"


def _shown(content: dict[str, Any]) -> dict[str, int]:
    """How many thumbnails each gallery takes from its sheet; views share theirs evenly."""
    lists = {"map": ("points",), "views": ("images",), "outliers": ("found",)}
    found = {name: len(content[name][key]) for name, (key,) in lists.items() if name in content}
    for name, keys in {"neighbours": ("near",), "changed": ("before", "after")}.items():
        if name in content:
            queries = content[name]["queries"]
            found[name] = sum(1 + sum(len(query[key]) for key in keys) for query in queries)
    return found
