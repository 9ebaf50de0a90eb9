"""Docstrings for the site: reStructuredText formulas and doctests, as the source has them, become Markdown."""

import inspect
import re
from typing import Any

from griffe import Extension, Object

MATH = re.compile(r"^\.\. math::[ \t]*(.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
LABEL = re.compile(r"(?<!\S)(Reference|Differs from the paper):")


class MarkdownDocstrings(Extension):
    """Converts every docstring that is loaded."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    r"""Convert formulas and doctests of a docstring to Markdown.

    >>> print(as_markdown('''Half.\n\n.. math:: \\frac{x}{2}\n\n>>> half(3)\n1.5'''))
    Half.
    <BLANKLINE>
    $$
    \frac{x}{2}
    $$
    <BLANKLINE>
    ```pycon
    >>> half(3)
    1.5
    ```
    """
    text = MATH.sub(lambda found: f"$$\n{_one_paragraph(found[1])}\n$$", inspect.cleandoc(docstring))
    text = INLINE.sub(r"$\1$", text)
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return LABEL.sub(r"**\1:**", text)


def _one_paragraph(formula: str) -> str:
    """Join the lines: an empty or indented line would end the formula."""
    return " ".join(line.strip() for line in formula.strip().splitlines())
