"""Writes the table of methods in docs/concepts.md and their names in README.md.

python scripts/make_methods_table.py
"""

import html
import textwrap
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


def documented(name: str, method: Method) -> tuple[str, ...]:
    """Cells of the table in docs/concepts.md."""
    parts = method.describe()
    align, constrain = ("; ".join(map(with_formulas, parts[role])) for role in ("align", "constrain"))
    return f"`{name}`", align, constrain or "none: it collapses", method.paper.partition(",")[0]


def table() -> str:
    """Every method with its parts, for docs/concepts.md."""
    head = ("method", "aligning part", "constraining part", "from")
    rows = [head, ("---",) * len(head), *(documented(name, method) for name, method in METHODS.items())]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def names() -> str:
    """The names of all methods, for README.md."""
    known = ", ".join(f"{one.title} (`{name}`)" for name, one in METHODS.items())
    return textwrap.fill(f"{len(METHODS)} methods: {known}.", 118)


PAGES = {ROOT / "docs" / "concepts.md": table, ROOT / "README.md": names}


def with_methods(page: Path) -> str:
    """The page with up-to-date methods between its markers."""
    text = page.read_text()
    if START not in text or END not in text:
        raise ValueError(f"{page} has no markers for the methods: {START.strip()} ... {END.strip()}")
    before, _, rest = text.partition(START)
    return f"{before}{START}\n{PAGES[page]()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_methods(page))
