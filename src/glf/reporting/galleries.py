"""Pictures: the map, neighbours, views and likely outliers, from the sheets of thumbnails that a run has left."""

from typing import Any

from glf.reporting.html import Markup, join, tag
from glf.reporting.load import Run
from glf.reporting.run_charts import entropies
from glf.reporting.svg import COLOURS, figure

SIDE, MARGIN = 600, 14


class Sheets:
    """The sheets of a page: one that several runs have in common is put into it once."""

    def __init__(self) -> None:
        self.classes: dict[str, str] = {}

    def of(self, run: Run, name: str) -> str | None:
        """The name of the style that has the sheet as its background."""
        address = run.sheet(name)
        return None if address is None else self.classes.setdefault(address, f"sheet{len(self.classes)}")

    def style(self) -> str:
        return "".join(f".{name}{{background-image:url({address})}}\n" for address, name in self.classes.items())


def tile(sheet: str, place: int, shape: dict[str, int], label: str) -> Markup:
    """One picture of a sheet."""
    columns, rows = shape["columns"], -(-shape["count"] // shape["columns"])
    x = 100 * (place % columns) / max(1, columns - 1)
    y = 100 * (place // columns) / max(1, rows - 1)
    style = f"background-size:{100 * columns}% {100 * rows}%;background-position:{x:.4g}% {y:.4g}%"
    return tag("span", role="img", aria_label=label, class_=f"tile {sheet}", style=style)


def feature_map(run: Run, sheets: Sheets, pictures: bool = True) -> Markup | None:
    """A dot for each image, a path for each class; the page's script finds the dot under the pointer."""
    found = run.artifacts.get("map")
    if not found:
        return None
    sheet = sheets.of(run, "map") if pictures else None
    groups = sorted(set(found["group"]))
    paths, names = [], []
    top = max(y for _, y in found["points"])
    scale, height = SIDE - 2 * MARGIN, (top - min(y for _, y in found["points"])) * (SIDE - 2 * MARGIN) + 2 * MARGIN
    for group in groups:
        members = [i for i, one in enumerate(found["group"]) if one == group]
        places = [found["points"][i] for i in members]
        d = "".join(f"M{MARGIN + x * scale:.1f} {MARGIN + (top - y) * scale:.1f}h0" for x, y in places)
        name = found["groups"][group] if 0 <= group < len(found["groups"]) else "no label"
        names.append(name)
        tiles = " ".join(str(i) for i in members)
        paths.append(tag("path", d=d, class_=f"dot c{group % COLOURS}", data_name=name, data_tiles=tiles))
    legend = [
        tag("li", tag("span", class_=f"key c{group % COLOURS}"), name)
        for group, name in zip(groups, names, strict=True)
    ]
    said = f"Map of {len(found['points']):,} images by t-SNE, coloured by {found['by']}: {', '.join(names)}"
    drawing = tag("svg", *paths, viewBox=f"0 0 {SIDE} {height:.0f}", role="img", aria_label=said, class_="dots")
    shape = found["sheet"]
    held = {"data_sheet": sheet, "data_columns": shape["columns"], "data_count": shape["count"]} if sheet else {}
    rows = " ".join(str(row) for row in found["rows"])
    return tag("div", drawing, tag("ul", *legend, class_="legend"), class_="map", data_rows=rows, **held)


def neighbours(run: Run, sheets: Sheets) -> Markup | None:
    """A row for each query; a neighbour of another class is framed and named."""
    found, sheet = run.artifacts.get("neighbours"), sheets.of(run, "neighbours")
    if not found or sheet is None:
        return None
    rows, place = [], 0
    for query in found["queries"]:
        cells = [tag("li", tile(sheet, place, found["sheet"], f"query: {_called(query)}"), tag("small", _class(query)))]
        for near in query["near"]:
            place += 1
            other = near["class"] != query["class"]
            label = f"{_called(near)}, cosine {near['similarity']:.2f}"
            name = (
                tag("small", _class(near), title=_class(near)) if other else tag("small", f"{near['similarity']:.2f}")
            )
            cells.append(tag("li", tile(sheet, place, found["sheet"], label), name, class_="other" if other else None))
        place += 1
        rows.append(tag("ol", *cells, class_="strip"))
    return tag("div", *rows, class_="strips")


def views(run: Run, sheets: Sheets) -> Markup | None:
    """An image, and what the network saw of it."""
    found, sheet = run.artifacts.get("views"), sheets.of(run, "views")
    if not found or sheet is None:
        return None
    each = found["sheet"]["count"] // len(found["images"])
    rows = []
    for number, image in enumerate(found["images"]):
        words = [f"image: {_called(image)}", *(f"view {i} of it" for i in range(1, each))]
        cells = [
            tag(
                "li",
                tile(sheet, number * each + i, found["sheet"], said),
                tag("small", _class(image)) if i == 0 else None,
            )
            for i, said in enumerate(words)
        ]
        rows.append(tag("ol", *cells, class_="strip"))
    return tag("div", *rows, class_="strips")


def outliers(run: Run, sheets: Sheets) -> Markup | None:
    """The images whose neighbourhood the prior finds flattest, and where they stand among all."""
    found, sheet = run.artifacts.get("outliers"), sheets.of(run, "outliers")
    if not found or sheet is None:
        return None
    cells = [
        tag(
            "li",
            tile(sheet, place, found["sheet"], f"{_called(one)}, entropy {one['entropy']:.2f}"),
            tag("small", f"{one['entropy']:.2f} · row {one['row']}"),
            tag("small", _class(one), title=_class(one)),
        )
        for place, one in enumerate(found["found"])
    ]
    chart = entropies(run)
    return join((tag("ol", *cells, class_="grid-tiles"), figure(chart) if chart else None))


def _called(image: dict[str, Any]) -> str:
    return f"{_class(image)} (row {image['row']})".strip()


def _class(image: dict[str, Any]) -> str:
    return str(image["class"]) if image.get("class") is not None else ""
