"""HTML and SVG from Python: whatever is not markup already is escaped, so that no name from the data can become any."""

import html
from collections.abc import Iterable

VOID = {"meta", "br", "img"}


class Markup(str):
    """Text that is markup: made by `tag` and `join` alone, beside the page's own style and script."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: object) -> Markup:
    """An element. Text is escaped, Markup is not; an attribute of None or False is left out, one of True has no value.

    >>> tag("p", "a < b", tag("b", "!"), class_="x", data_name='"')
    '<p class="x" data-name="&quot;">a &lt; b<b>!</b></p>'
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{said}>" if name in VOID else f"<{name}{said}>{join(children)}</{name}>")


def join(parts: Iterable[str | None]) -> Markup:
    """One after the other; text is escaped."""
    return Markup("".join(one if isinstance(one, Markup) else html.escape(one) for one in parts if one is not None))
