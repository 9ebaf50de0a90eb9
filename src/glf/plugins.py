"""Plug-ins: Python files, and installed packages, that add methods and constraints.

A file is named with ``--plugin``; a package offers one as an entry point of the group ``glf.plugins``. ``config.json``
records a plug-in with the hash of its file, so that later commands on the run find it again, and notice a change.

A plug-in is code. glf executes the files that you name, and remembers their hashes and places; a file that only a run
directory names is executed if its hash is among those. Installed packages are trusted, like everything you install.
"""

import hashlib
import re
import shlex
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from glf.data.image_cache import cache_root
from glf.files import atomic_write, printable, read_regular

GROUP = "glf.plugins"
_MOST = 10**7  # bytes of a file
_RECORDED = re.compile(r"(?P<name>.*)@sha256:(?P<sha256>[0-9a-f]{64})", re.DOTALL)


class Plugin(NamedTuple):
    """A plug-in: the path of its file, or the name of an entry point, and the hash of the file."""

    name: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}@sha256:{self.sha256}"


_executed: dict[str, str] = {}  # the hash of each plug-in that was executed, by its name: the last one
_named: dict[str, str] = {}  # paths of the files that the user of this process has named, by their hash
_executing: list[Plugin] = []  # the innermost last
_useful: set[Plugin] = set()  # those that have registered something


def registering() -> Plugin | None:
    """The plug-in that is being executed, to which what is registered now belongs."""
    if not _executing:
        return None
    _useful.add(_executing[-1])
    return _executing[-1]


def pin(names: Iterable[str]) -> tuple[str, ...]:
    """Names of plug-ins with their present hashes, as recorded. What the user names is allowed from now on."""
    found = []
    for one in names:
        name, recorded = _split(one)
        plugin = _present(name)
        if recorded and recorded != plugin.sha256:
            raise _changed(plugin, recorded)
        if _is_file(name):
            _allow(plugin)
        found.append(str(plugin))
    return tuple(found)


def digest(pinned: str) -> str:
    """The hash of a plug-in as recorded."""
    return _split(pinned)[1]


def check_recorded(named: Iterable[str], recorded: Iterable[str]) -> None:
    """Refuse what a user names on --resume if it is not what the run was started with; the content counts."""
    known = {digest(one): one for one in recorded}
    for one in named:
        if digest(one) not in known:
            was = ", ".join(map(printable, known.values())) or "none"
            raise ValueError(
                f"the plug-in {printable(one)} is not the one that the run was started with ({was}): restore the file,"
                " or start another run"
            )


def load(pinned: Iterable[str]) -> None:
    """Execute plug-ins as recorded, unless this process has; say what is missing, has changed, or is not allowed."""
    for one in pinned:
        name, recorded = _split(one)
        if not recorded:
            raise ValueError(f"the plug-in {printable(one)} is recorded without the hash of its file: train again")
        plugin = _recorded_file(name, recorded) if _is_file(name) else _present(name, ", which this run needs")
        if recorded != plugin.sha256:
            raise _changed(plugin, recorded)
        _execute(plugin)


def load_installed() -> None:
    """Execute the plug-ins of installed packages, unless this process has."""
    for name in _installed():
        _execute(_present(name))


def _split(recorded: str) -> tuple[str, str]:
    """The name of a plug-in and its hash, which is empty if there is none.

    >>> _split("a.py"), _split("a.py@sha256:" + 64 * "0") == ("a.py", 64 * "0")
    (('a.py', ''), True)
    """
    match = _RECORDED.fullmatch(recorded)
    return (match["name"], match["sha256"]) if match else (recorded, "")


def _is_file(name: str) -> bool:
    return name.endswith(".py")


def _present(name: str, why: str = "; the name of a file ends in .py") -> Plugin:
    """The plug-in of this name as it is now: a file, by its absolute path, or an entry point."""
    if _is_file(name):
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise FileNotFoundError(f"no plug-in {printable(str(path))}: it is missing, or not a file")
        return Plugin(str(path), _hash_of(path))
    entry = _installed().get(name)
    if entry is None:
        known = ", ".join(_installed()) or "none"
        raise ValueError(f"no installed package has a plug-in {printable(name)!r} (installed: {known}){why}")
    return Plugin(name, _hash_of(_source_of(entry)))


def _recorded_file(name: str, recorded: str) -> Plugin:
    """The file with the recorded hash: where it was, or where the user has named it since. It must be allowed."""
    seen = _seen(recorded)
    for path in (Path(name), *([seen] if seen else [])):
        if path.is_file() and _hash_of(path) == recorded:
            if seen is None:
                raise ValueError(
                    f"the plug-in {printable(name)}, which this run needs, is code that you have never named on this"
                    f" machine: read it, then allow it with: glf methods --plugin {shlex.quote(printable(name))}"
                )
            return Plugin(str(path), recorded)
    if Path(name).is_file():
        return _present(name)  # it has changed
    raise FileNotFoundError(
        f"no plug-in {printable(name)}, which this run needs (SHA-256 {recorded[:12]}…): put the file back, or name the"
        " same file at its new place: glf methods --plugin FILE"
    )


def _hash_of(path: Path) -> str:
    return hashlib.sha256(read_regular(path, _MOST)).hexdigest()


def _changed(plugin: Plugin, recorded: str) -> ValueError:
    copy = "name an unchanged copy (glf methods --plugin FILE)"
    advice = copy if _is_file(plugin.name) else "install its package as it was"
    return ValueError(
        f"the plug-in {printable(plugin.name)} has changed: its SHA-256 was {recorded[:12]}…, and is"
        f" {plugin.sha256[:12]}… now. Restore it, or {advice}, or train again"
    )


def _execute(plugin: Plugin) -> None:
    """Execute a plug-in, unless it is what this process has executed last under this name."""
    if _executed.get(plugin.name) == plugin.sha256:
        return
    _executing.append(plugin)
    try:
        if _is_file(plugin.name):
            _execute_file(plugin)
            if plugin not in _useful:
                raise ValueError("it adds nothing: call glf.register_method or glf.register_constraint in it")
        else:
            _installed()[plugin.name].load()
    except (Exception, SystemExit) as error:
        raise ValueError(f"the plug-in {printable(plugin.name)} failed: {_described(error, plugin)}") from error
    finally:
        _executing.pop()
    _executed[plugin.name] = plugin.sha256


def _execute_file(plugin: Plugin) -> None:
    """Execute the bytes whose hash is the plug-in's, and not what the file may contain a moment later."""
    source = read_regular(plugin.name, _MOST)
    if hashlib.sha256(source).hexdigest() != plugin.sha256:
        raise ValueError("the file is changing")
    module = ModuleType(f"glf_plugin_{Path(plugin.name).stem}_{plugin.sha256[:8]}")
    module.__file__ = plugin.name
    sys.modules[module.__name__] = module  # before it is executed: dataclasses look for their module
    exec(compile(source, plugin.name, "exec", dont_inherit=True), vars(module))


def _described(error: BaseException, plugin: Plugin) -> str:
    """An error with its line in the plug-in: ``NameError in line 3: name 'x' is not defined``."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == plugin.name]
    where = f" in line {lines[-1]}" if lines else ""
    return f"{type(error).__name__}{where}: {error}"


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _source_of(entry: EntryPoint) -> Path:
    with suppress(ImportError):  # a package above the module is missing, or fails
        spec = find_spec(entry.module)
        if spec is not None and spec.has_location and spec.origin:
            return Path(spec.origin)
    raise ValueError(f"the plug-in {printable(entry.name)} names the module {entry.module}, which is not there")


def _allow(plugin: Plugin) -> None:
    """Remember a file that the user has named: its hash, and where it is."""
    _named[plugin.sha256] = plugin.name
    # In a home that cannot be written, the plug-in has to be named again next time.
    with suppress(OSError), atomic_write(_note(plugin.sha256)) as partial:
        partial.write_text(plugin.name, encoding="utf-8", errors="surrogateescape")


def _seen(sha256: str) -> Path | None:
    """Where the user has last named the file with this hash; None if that was never."""
    if sha256 in _named:
        return Path(_named[sha256])
    with suppress(OSError, ValueError):
        return Path(_note(sha256).read_text(encoding="utf-8", errors="surrogateescape"))
    return None


def _note(sha256: str) -> Path:
    return cache_root() / "plugins" / sha256
