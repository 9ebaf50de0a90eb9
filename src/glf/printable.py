"""Names that come from elsewhere, made fit for a line of a file and for a terminal."""

import os

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    r"""One line without control characters: what cannot be printed is written as the bytes that it is on the disk.

    A file's name may hold anything but a slash: line breaks, codes that move a terminal's cursor, marks that turn the
    direction of writing, bytes that are no text at all.

    >>> print(printable("a\nb\x1b[2J"), printable(os.fsdecode(b"caf\xe9")), printable("café"))
    a\nb\x1b[2J caf\xe9 café
    """
    return "".join(c if c.isprintable() else _SHORT.get(c) or _as_bytes(c) for c in text)


def _as_bytes(character: str) -> str:
    try:
        data = os.fsencode(character)
    except UnicodeEncodeError:  # half of a pair, which no file system here gives, but a file's content may
        data = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)
