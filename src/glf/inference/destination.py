"""A folder to which files are written: on this machine, or at a URL through fsspec.

A file appears under its name when it is whole. On a disk it is renamed; elsewhere it is written under a temporary name
and moved, which object stores do by copying the whole object.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glf.files import atomic_write, check_output, printable, remove_leftovers


@dataclass(frozen=True)
class Destination:
    """The folder. ``system`` is its fsspec file system; None if it is on this machine."""

    root: str
    system: Any = None

    def path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if self.system else os.path.join(self.root, name)

    def place(self, name: str) -> str:
        """Where a file is, as the user finds it."""
        return self.system.unstrip_protocol(self.path(name)) if self.system else self.path(name)

    def names(self) -> list[str]:
        """The visible files in the folder, sorted; none if it does not exist yet."""
        try:
            found = self.system.ls(self.root, detail=False, refresh=True) if self.system else os.listdir(self.root)
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise ValueError(f"{self.root} is not a folder: give another") from None
        except Exception as error:  # each file system raises its own
            raise ValueError(f"{self.place('')} cannot be listed ({_reason(error)}): give another folder") from error
        return sorted(name for name in (str(path).rsplit("/", 1)[-1] for path in found) if name[:1] != ".")

    def open(self, name: str) -> Any:
        """Open a file for reading bytes."""
        return (self.system.open if self.system else open)(self.path(name), "rb")

    def check(self, name: str) -> None:
        """Raise ValueError if this file cannot be written: before any work."""
        if self.system is None:
            if os.path.exists(self.root) and not os.path.isdir(self.root):
                raise ValueError(f"{self.root} is not a folder: choose another --out")
            check_output(Path(self.path(name)), lambda file: True)
            return
        try:
            with self._opened(trial := self._temporary(name)) as file:
                file.write(b"")
            self.system.rm_file(trial)
        except Exception as error:  # each file system raises its own
            raise ValueError(f"{self.place('')} cannot be written ({_reason(error)}): choose another --out") from error

    @contextmanager
    def write(self, name: str) -> Iterator[Any]:
        """Open a file for writing bytes, which gets its name when the block succeeds."""
        if self.system is None:
            with atomic_write(Path(self.path(name))) as partial:
                remove_leftovers(partial.parent, of=name)
                with open(partial, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
            return
        partial_name = self._temporary(name)
        try:
            with self._opened(partial_name) as file:
                yield file
            self.system.mv(partial_name, self.path(name))
        except BaseException:
            with suppress(Exception):
                self.system.rm_file(partial_name)
            raise

    def _temporary(self, name: str) -> str:
        return self.path(f".{name}.{uuid.uuid4().hex}.glf-partial")

    def _opened(self, path: str) -> Any:
        try:
            return self.system.open(path, "wb")
        except FileNotFoundError:  # object stores have no folders; where there are some, they are made
            self.system.makedirs(self.root, exist_ok=True)
            return self.system.open(path, "wb")


def open_destination(out: str | Path) -> Destination:
    """Return the folder that a path or a URL names; ValueError if its protocol needs something that is not there."""
    text = str(out)
    if "://" not in text:
        return Destination(os.path.expanduser(text))
    try:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem
    except ImportError:
        raise ValueError(f"{text} is a URL, which needs fsspec: pip install 'glf[parquet]'") from None
    try:
        system, root = fsspec.core.url_to_fs(text, use_listings_cache=False)
    except ImportError as error:
        raise ValueError(
            f"{text} needs a package that is not installed ({_reason(error)}): pip install it, then run this again"
        ) from None
    except Exception as error:
        known = "s3://, gs://, file:// and others"
        raise ValueError(f"{text} cannot be opened ({_reason(error)}): fsspec knows {known}") from None
    return Destination(root) if isinstance(system, LocalFileSystem) else Destination(root, system)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return printable(lines[0]) if lines else type(error).__name__
