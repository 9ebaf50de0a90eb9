"""What a case may do: how it may end, and what it may write."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fuzzing.case import Case
from fuzzing.inputs import EXECUTED

Snapshot = dict[str, tuple[Any, ...]]  # what is at each path


class Ended(NamedTuple):
    """How a case ended. ``code`` is that of a shell: 128 + n after signal n."""

    code: int
    hung: bool = False
    left: bool = False  # a process of it lived longer
    sent: bool = False  # the signal, in time


def snapshot(folder: Path) -> Snapshot:
    """Kind, mode and content of everything below a folder."""
    found: Snapshot = {}
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(parent, name)
            about = path.lstat()
            kind = stat.S_IFMT(about.st_mode)
            content: Any = about.st_rdev
            if stat.S_ISREG(kind):
                content = hashlib.blake2b(path.read_bytes()).hexdigest()
            elif stat.S_ISLNK(kind):
                content = os.readlink(path)
            found[str(path.relative_to(folder))] = (kind, stat.S_IMODE(about.st_mode), content)
    return found


def findings(words: list[str], ended: Ended, out: bytes, err: bytes) -> Iterator[str]:
    """What is wrong with the way a case ended."""
    text = err.decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    allowed = {0, 2, 3} | ({1} if words[0] in ("doctor", "verify") else set())
    allowed |= {130, 143} if ended.sent else set()
    framed = text.lstrip().startswith("╭")  # by tyro, which repeats the words that it does not understand
    if ended.hung:
        yield "hang"
    elif "Traceback (most recent call last)" in text:
        where = [found[1] for found in re.finditer(r'File ".*?/src/(glf/[^"]+", line \d+)', text)]
        yield f"traceback: {lines[-1][:120]} ({where[-1] if where else '?'})"
    elif ended.code not in allowed:
        yield f"exit code {ended.code}"
    elif ended.code in (2, 3) and not framed:
        said = [line for line in lines if line.startswith("glf: ")]
        if len(said) != 1:
            yield f"exit code {ended.code} with {len(said)} messages"
        elif lines[-1] != said[0]:
            yield f"message of several lines: {lines[-1][:100]}"
        elif len(lines) > 1:
            yield f"other lines on stderr: {lines[0][:100]}"
        elif len(said[0]) < 12:
            yield f"empty message: {said[0]}"
    if ended.left:
        yield "a process is left"
    if b"\x1b" in out + err and not framed:
        yield "escape codes in the output"


def changes(before: Snapshot, after: Snapshot, case: Case, stopped: bool) -> Iterator[str]:
    """Inputs that changed, and files that nobody named."""
    above = {str(parent) for path in case.creates for parent in path.parents}

    def below(path: Path, named: list[Path]) -> bool:
        return any(one == path or one in path.parents for one in named)

    for name in sorted(before.keys() | after.keys()):
        path = Path(name)
        if before.get(name) == after.get(name) or re.fullmatch(r"\..+\.lock", path.name):
            continue
        if path.name == EXECUTED:
            yield "something in a file or a name was executed"
        elif name in before and not below(path, case.replaces):
            yield f"{'changed' if name in after else 'deleted'} {name!r}"
        elif name not in before and not below(path, case.creates) and name not in above:
            temporary = re.fullmatch(r"\.(.+)\.\d+\.glf-partial", path.name)
            if not (stopped and temporary and below(path.with_name(temporary[1]), case.creates)):
                yield f"wrote {name!r}"
