"""What a user writes for a table: a path or ``hf:user/name:split``, and after ``?`` the columns.

This module needs no pyarrow.
"""

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from glf.config.base import nearest

HUB = "hf:"
OPTIONS = ("image", "label")
HUB_OPTIONS = (*OPTIONS, "config")


class Address(NamedTuple):
    """A path or a name of the Hub, and the options after it."""

    base: str
    options: dict[str, str]


def is_hub(data: str) -> bool:
    """Whether this names a data set of the Hugging Face Hub."""
    return data.startswith(HUB)


def parse_address(data: str) -> Address:
    """Split the options off; a path that exists as it is has none.

    >>> parse_address("hf:user/name:test?image=img&label=fine_label")
    Address(base='hf:user/name:test', options={'image': 'img', 'label': 'fine_label'})
    """
    base, mark, query = data.partition("?") if is_hub(data) else data.rpartition("?")
    if not mark or (not is_hub(data) and os.path.exists(Path(data).expanduser())):
        return Address(data, {})
    known = HUB_OPTIONS if is_hub(data) else OPTIONS
    expected = "&".join(f"{name}=..." for name in known)
    try:
        options = dict(parse_qsl(query, strict_parsing=True))
    except ValueError:
        raise ValueError(f"{data!r}: {query!r} cannot be read as options, expected ?{expected}") from None
    for name in options:
        if name not in known:
            raise ValueError(f"{data!r}: unknown option {name!r}{nearest(name, known)}, expected ?{expected}")
    return Address(base, options)
