"""Draws docs/pictures/architecture.svg: the modules of src/glf, and which imports which.

    python scripts/make_architecture.py

The arrows are the imports found in the source, without those that follow from others (A -> B -> C makes A -> C
redundant). Only the positions of the boxes and their second lines are written here. tests/test_site.py fails when the
picture is out of date.
"""

import sys
from collections import defaultdict
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from glf.commands import COMMANDS  # noqa: E402
from test_layers import FILES, ORDER, imports, layer  # noqa: E402

OUT = ROOT / "docs" / "pictures" / "architecture.svg"
# Drawn as bands without arrows: imported everywhere, or calling functions by name
BASE = ("runfiles", "files", "ui", "malloc", "device", "types", "distributed", "config", "schema")
COMMAND_LINE = ("commands", "cli", "__main__")
# Column and row of each module, the group that gives its colour, and its second line (default: its commands)
MODULES: dict[str, tuple[float, float, str, str]] = {
    "data": (0, 0, "data", "files → Batch → Views"),
    "terms": (1.5, 0, "loss", "Term, Sum"),
    "checkpoint": (2.9, 0, "run", "safe loading of files"),
    "result": (4.75, 0, "run", "result.json"),
    "nn": (0, 1, "data", "Views → Embeddings"),
    "rundir": (2.9, 1, "run", "directory and lock"),
    "health": (3.85, 1, "run", ""),
    "loggers": (4.1, 2.3, "run", "TensorBoard, W&B, ..."),
    "sharding": (0, 2, "use", ""),
    "similarity": (1, 2, "loss", "pairs of embeddings"),
    "objective": (2, 2, "loss", "Embeddings → Loss"),
    "relations": (2, 4, "loss", "p and q of anchors"),
    "plugins": (3, 4, "loss", "code that adds methods"),
    "align": (0.5, 3, "loss", "aligning terms"),
    "constrain": (1.5, 3, "loss", "constraints, ADC"),
    "recipes": (0, 4, "loss", "hyperparameters"),
    "measure": (1, 4, "use", "features → numbers"),
    "methods": (2, 5, "loss", "one table of methods"),
    "listing": (0, 6, "use", ""),
    "exporting": (1, 6, "use", ""),
    "evaluation": (2, 6, "use", ""),
    "train": (3, 6, "use", ""),
    "inference": (4, 8, "use", ""),
    "reporting": (5, 6, "use", ""),
    "adaptation": (3, 7, "use", ""),
    "comparison": (3, 8, "use", ""),
}
WIDTH, HEIGHT = 150, 48  # of a box
COLUMN, ROW = 166, 92  # from one box to the next
MARGIN, BAND = 16, 56
STYLE = """
text { font: 12px system-ui, sans-serif; text-anchor: middle; fill: #44505c }
.name { font-weight: 600; font-size: 15px; fill: #17212b }
.edge { fill: none; stroke: #8a96a3; stroke-width: 1.3 }
.tip { fill: #8a96a3 }
.box { stroke-width: 1.5 }
.paper { fill: #ffffff }
.band { fill: #eef1f4 }
.data { fill: #e3f1fb; stroke: #2f86c9 }
.loss { fill: #fdeee2; stroke: #d9722b }
.run { fill: #f0ecfa; stroke: #7d63c4 }
.use { fill: #e2f4ee; stroke: #199b77 }
@media (prefers-color-scheme: dark) {
  text { fill: #b9c4cf }
  .name { fill: #f0f4f8 }
  .edge { stroke: #76828f }
  .tip { fill: #76828f }
  .paper { fill: #14191f }
  .band { fill: #222a33 }
  .data { fill: #17334a }
  .loss { fill: #46290f }
  .run { fill: #2d2450 }
  .use { fill: #0d3a2d }
}
"""


def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports, without itself."""
    found: dict[str, set[str]] = {module: set() for module in ORDER}
    for file in FILES:
        module = file.partition("/")[0].removesuffix(".py")
        if module in found:
            found[module] |= {layer(name) for name in imports(file)} - {module}
    return found


def reduced(imported: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without the imports that follow from others.

    >>> reduced({"a": set(), "b": {"a"}, "c": {"a", "b"}})["c"]
    {'b'}
    """
    reached: dict[str, set[str]] = {}

    def reach(module: str) -> set[str]:
        if module not in reached:
            reached[module] = imported[module].union(*(reach(other) for other in imported[module]))
        return reached[module]

    return {
        module: {one for one in others if not any(one in reach(other) for other in others)}
        for module, others in imported.items()
    }


def draw(imported: dict[str, set[str]]) -> str:
    """Return the picture. Arrows lead from a module to those that import it: downwards, in the one-way order."""
    unplaced = set(imported) - set(MODULES) - set(BASE) - set(COMMAND_LINE)
    assert not unplaced, f"give these modules a position in {Path(__file__).name}: {unplaced}"
    edges = [(a, b) for b, others in reduced(imported).items() for a in others if {a, b} <= set(MODULES)]
    wrong = [(a, b) for a, b in edges if MODULES[a][1] >= MODULES[b][1]]
    assert not wrong, f"these arrows do not lead downwards: move the modules in {Path(__file__).name}: {wrong}"
    rows = 1 + max(row for _, row, _, _ in MODULES.values())
    columns = 1 + max(column for column, _, _, _ in MODULES.values())
    top = MARGIN + BAND + ROW - HEIGHT
    bottom = top + (rows - 1) * ROW + HEIGHT + ROW - HEIGHT
    width, height = 2 * MARGIN + (columns - 1) * COLUMN + WIDTH, bottom + BAND + MARGIN
    boxes = {module: (MARGIN + c * COLUMN, top + r * ROW) for module, (c, r, _, _) in MODULES.items()}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        "<title>The modules of glf, and which imports which</title>",
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker>',
        f'<rect class="paper" width="{width:g}" height="{height:g}" rx="8"/>',
        *band(MARGIN, width, BASE, "the base: records, options, files, devices"),
        *arrows(edges, boxes),
    ]
    for module, (x, y) in boxes.items():
        _, _, group, note = MODULES[module]
        lines.append(f'<rect class="box {group}" x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>')
        lines += two_lines(x + WIDTH / 2, y + 20, module, note or commands_of(module))
    lines += [
        *band(bottom, width, COMMAND_LINE, "each command names a function of a module above"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def band(y: float, width: float, modules: tuple[str, ...], note: str) -> list[str]:
    rect = f'<rect class="band" x="{MARGIN}" y="{y:g}" width="{width - 2 * MARGIN:g}" height="{BAND}" rx="6"/>'
    return [rect, *two_lines(width / 2, y + 24, " · ".join(modules), note)]


def two_lines(x: float, y: float, name: str, note: str) -> list[str]:
    return [
        f'<text class="name" x="{x:g}" y="{y:g}">{escape(name)}</text>',
        f'<text x="{x:g}" y="{y + 17:g}">{escape(note)}</text>',
    ]


def commands_of(module: str) -> str:
    names = [command.name for command in COMMANDS.values() if layer(command.function.partition(":")[0]) == module]
    return "glf " * (len(names) == 1) + ", ".join(names)


def arrows(edges: list[tuple[str, str]], boxes: dict[str, tuple[float, float]]) -> list[str]:
    """Return the curves; those of one box leave it, or enter it, side by side."""
    leaving, entering = defaultdict(list), defaultdict(list)
    for a, b in sorted(edges):
        leaving[a].append(b)
        entering[b].append(a)

    def port(module: str, other: str, others: list[str]) -> float:
        in_order = sorted(others, key=lambda one: (boxes[one][0], boxes[one][1]))
        return boxes[module][0] + WIDTH * (1 + in_order.index(other)) / (1 + len(others))

    lines = []
    for a, b in sorted(edges):
        x0, y0 = port(a, b, leaving[a]), boxes[a][1] + HEIGHT
        x1, y1 = port(b, a, entering[b]), boxes[b][1]
        bend = (y1 - y0) / 2
        curve = f"M{x0:.4g} {y0:g}C{x0:.4g} {y0 + bend:g} {x1:.4g} {y1 - bend:g} {x1:.4g} {y1:g}"
        lines.append(f'<path class="edge" marker-end="url(#tip)" d="{curve}"/>')
    return lines


if __name__ == "__main__":
    OUT.write_text(draw(graph()), encoding="utf-8")
