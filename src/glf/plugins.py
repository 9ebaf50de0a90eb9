"""Plug-ins: Python files, and installed packages, that add methods and constraints.

A file is named with ``--plugin``; a package offers one as an entry point of the group ``glf.plugins``. ``config.json``
records a plug-in with the hash of its file, so that later commands on the run find it again, and notice a change.

A plug-in is code. glf executes the files that you name, and remembers their hashes; a file that only a run directory
names is executed if its hash is among those. Installed packages are trusted, like everything you install.
"""

import hashlib
import re
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from glf.data.image_cache import cache_root
from glf.files import printable

GROUP = "glf.plugins"
_MARK = "@sha256:"  # between the name of a plug-in and the hash of its file, as recorded
_HASH = re.compile(r"[0-9a-f]{64}")


class Plugin(NamedTuple):
    """A plug-in: the path of its file, or the name of an entry point, and the hash of the file."""

    name: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}{_MARK}{self.sha256}"


_executed: set[Plugin] = set()
_named: set[str] = set()  # hashes of the files that the user of this process has named
_executing: list[Plugin] = []  # the innermost last


def current() -> Plugin | None:
    """The plug-in that is being executed, to which what it registers belongs."""
    return _executing[-1] if _executing else None


def pin(names: Iterable[str]) -> tuple[str, ...]:
    """Names of plug-ins with their present hashes, as recorded. What the user names is allowed from now on."""
    found = []
    for name in names:
        path, mark, recorded = name.partition(_MARK)
        plugin = _present(path)
        if mark and recorded != plugin.sha256:
            raise _changed(plugin, recorded)
        if not mark:
            _allow(plugin.sha256)
        found.append(str(plugin))
    return tuple(found)


def digest(pinned: str) -> str:
    """The hash of a plug-in as recorded."""
    return pinned.partition(_MARK)[2]


def load(pinned: Iterable[str]) -> None:
    """Execute plug-ins as recorded, unless this process has; say what is missing, has changed, or is not allowed."""
    for one in pinned:
        name, _, recorded = one.partition(_MARK)
        if Plugin(name, recorded) in _executed:
            continue
        if _is_file(name) and not _is_allowed(recorded):
            raise ValueError(
                f"the plug-in {printable(name)}, which this run needs, has never been used on this machine, and it is"
                f" code: read it, then allow it with: glf methods --plugin {shlex.quote(printable(name))}"
            )
        plugin = _present(name)
        if recorded != plugin.sha256:
            raise _changed(plugin, recorded)
        _execute(plugin)


def load_installed() -> None:
    """Execute the plug-ins of installed packages, unless this process has."""
    for name in _installed():
        plugin = _present(name)
        if plugin not in _executed:
            _execute(plugin)


def _present(name: str) -> Plugin:
    """The plug-in of this name as it is now: a file, by its absolute path, or an entry point."""
    if not _is_file(name):
        entry = _installed().get(name)
        if entry is None:
            known = ", ".join(_installed()) or "none"
            raise ValueError(f"no installed package has a plug-in {printable(name)!r} (installed: {known})")
        return Plugin(name, hashlib.sha256(_source_of(entry).read_bytes()).hexdigest())
    path = Path(name).expanduser().absolute()
    if not path.is_file():
        raise FileNotFoundError(f"no plug-in {printable(str(path))}: it is missing, or not a file")
    return Plugin(str(path), hashlib.sha256(path.read_bytes()).hexdigest())


def _is_file(name: str) -> bool:
    return name.endswith(".py")


def _changed(plugin: Plugin, recorded: str) -> ValueError:
    return ValueError(
        f"the plug-in {printable(plugin.name)} has changed: its SHA-256 was {recorded[:12]}…, and is"
        f" {plugin.sha256[:12]}… now. Restore the file, or train again"
    )


def _execute(plugin: Plugin) -> None:
    _executing.append(plugin)
    try:
        if _is_file(plugin.name):
            _execute_file(plugin)
        else:
            _installed()[plugin.name].load()
    except Exception as error:
        raise ValueError(f"the plug-in {printable(plugin.name)} failed: {type(error).__name__}: {error}") from error
    finally:
        _executing.pop()
    _executed.add(plugin)


def _execute_file(plugin: Plugin) -> None:
    """Execute the bytes whose hash is the plug-in's, and not what the file may contain a moment later."""
    source = Path(plugin.name).read_bytes()
    if hashlib.sha256(source).hexdigest() != plugin.sha256:
        raise ValueError("the file is changing")
    module = ModuleType(f"glf_plugin_{Path(plugin.name).stem}_{plugin.sha256[:8]}")
    module.__file__ = plugin.name
    sys.modules[module.__name__] = module  # before it is executed: dataclasses look for their module
    exec(compile(source, plugin.name, "exec"), vars(module))


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _source_of(entry: EntryPoint) -> Path:
    spec = find_spec(entry.module)
    if spec is None or not spec.origin:
        raise ValueError(f"the plug-in {entry.name} names the module {entry.module}, which is not there")
    return Path(spec.origin)


def _allow(sha256: str) -> None:
    with suppress(OSError):  # a home that cannot be written: the plug-in has to be named again next time
        _allowed(sha256).parent.mkdir(parents=True, exist_ok=True)
        _allowed(sha256).touch()
    _named.add(sha256)


def _is_allowed(sha256: str) -> bool:
    return bool(_HASH.fullmatch(sha256)) and (sha256 in _named or _allowed(sha256).is_file())


def _allowed(sha256: str) -> Path:
    return cache_root() / "plugins" / sha256
