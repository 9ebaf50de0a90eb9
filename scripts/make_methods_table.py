"""Writes the methods tables of docs/concepts.md (with formulas) and README.md (names of the terms).

python scripts/make_methods_table.py
"""

import html
from pathlib import Path

from glf.methods import METHODS
from glf.objective import Method, Part

ROOT = Path(__file__).parents[1]
START, END = "<!-- methods: make_methods_table.py -->\n", "<!-- end of methods -->\n"


def with_formulas(part: Part) -> str:
    """A term's weight and name, and its formula as code; a bar would end the cell."""
    if not part.is_formula:
        return str(part)
    if "|" not in part.text:
        return f"{part.label} `{part.text}`"
    return f"{part.label} <code>{html.escape(part.text, quote=False).replace('|', '&#124;')}</code>"


def names_only(part: Part) -> str:
    """A term's weight and name; other parts in full."""
    return part.label if part.is_formula else str(part)


def documented(name: str, method: Method) -> tuple[str, ...]:
    """Cells of the table in docs/concepts.md."""
    parts = method.describe()
    align, constrain = ("; ".join(map(with_formulas, parts[role])) for role in ("align", "constrain"))
    return f"`{name}`", align, constrain or "none: it collapses", method.paper.partition(",")[0]


def summarised(name: str, method: Method) -> tuple[str, ...]:
    """Cells of the table in README.md."""
    parts = method.describe()
    align, constrain = ("; ".join(map(names_only, parts[role])) for role in ("align", "constrain"))
    return f"`{name}`", method.title, align, constrain or "none: it collapses"


PAGES = {
    ROOT / "docs" / "concepts.md": (("method", "aligning part", "constraining part", "from"), documented),
    ROOT / "README.md": (("method", "name", "aligning part", "constraining part"), summarised),
}


def with_table(page: Path) -> str:
    """The page with an up-to-date table between its markers."""
    head, cells = PAGES[page]
    rows = [head, ("---",) * len(head), *(cells(name, method) for name, method in METHODS.items())]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    text = page.read_text()
    if START not in text or END not in text:
        raise ValueError(f"{page} has no markers for the methods table: {START.strip()} ... {END.strip()}")
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{table}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_table(page))
