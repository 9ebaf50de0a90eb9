"""Writes the table of docs/concepts.md from the rows of glf.methods: what `glf methods` prints, as a page.

python scripts/make_methods_table.py
"""

import html
from pathlib import Path

from glf.methods import METHODS
from glf.terms import Term

PAGE = Path(__file__).parents[1] / "docs" / "concepts.md"
START, END = "<!-- methods: make_methods_table.py -->\n", "<!-- end of methods -->\n"


def table() -> str:
    """A line for each method: the terms as they are logged, with their weights, and what constrains beside them."""
    lines = ["| method | aligning part | constraining part | from |", "|---|---|---|---|"]
    for name, method in METHODS.items():
        objective = method.build()
        align = [described(weight, term) for weight, term in objective.align.parts]
        constrain = [described(w, t) for w, t in objective.constrain.parts] if objective.constrain else []
        constrain += [f"map: {step.formula}" for step in objective.transforms]
        constrain += [f"architecture: {method.architecture}"] if method.architecture else []
        cells = (
            f"`{name}`",
            "; ".join(align),
            "; ".join(constrain) or "none: it collapses",
            method.paper.partition(",")[0],
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def described(weight: float, term: Term) -> str:
    """A weight other than one, the term's name, its formula as code; a bar would end the table's cell."""
    factor = "" if weight == 1 else f"{weight:g} "
    bars = html.escape(term.formula, quote=False).replace("|", "&#124;")
    return f"{factor}{term.name} " + (f"<code>{bars}</code>" if "|" in term.formula else f"`{term.formula}`")


def with_table(page: str) -> str:
    """The page with the present table between its marks."""
    before, _, rest = page.partition(START)
    after = rest.partition(END)[2]
    return f"{before}{START}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
