"""Files by name, in a folder or in a tar, so that every layout can be read from either."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from glf.data.members import members, why_passed_over


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder, or an uncompressed tar whose files are read where they lie; a folder around everything is taken off."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise ValueError(f"no such file or folder: {self.path}")
        if not self.path.is_dir() and self.path.suffix.lower() != ".tar":
            raise ValueError(f"{self.path} is neither a folder nor a .tar; decompress it first if it is an archive")

    @cached_property
    def files(self) -> dict[str, tuple[int, int] | None]:
        """Every file that is not hidden, parts separated by "/": None in a folder, offset and size in a tar."""
        found = self._listed() if self.path.is_dir() else self._members()
        tops = {name.partition("/")[0] if "/" in name else "" for name in found}
        if not self.path.is_dir() and len(tops) == 1 and tops != {""}:
            return {name.partition("/")[2]: where for name, where in found.items()}
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def below(self, folder: str, ending: str | tuple[str, ...] = "") -> list[str]:
        """The names that start with ``folder`` and end like that, sorted."""
        return sorted(name for name in self.files if name.startswith(folder) and name.lower().endswith(ending))

    def read(self, name: str) -> bytes:
        """The bytes of one file, opened anew each time: any thread or process may read."""
        where = self.files[name]
        if where is None:
            return (self.path / name).read_bytes()
        with self.path.open("rb", buffering=0) as tar:
            tar.seek(where[0])
            return tar.read(where[1])

    def _listed(self) -> dict[str, tuple[int, int] | None]:
        found: dict[str, tuple[int, int] | None] = {}
        seen: set[tuple[int, int]] = set()
        for folder, folders, files in os.walk(self.path, followlinks=True):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:  # a loop of links
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            inside = Path(folder).relative_to(self.path)
            found |= {(inside / name).as_posix(): None for name in files if not name.startswith(".")}
        return found

    def _members(self) -> dict[str, tuple[int, int] | None]:
        found: dict[str, tuple[int, int] | None] = {}
        for member in members(self.path):
            place = PurePosixPath(member.name)
            if why_passed_over(member) is None and not any(part.startswith(".") for part in place.parts):
                found[str(place)] = (member.offset_data, member.size)
        return found
