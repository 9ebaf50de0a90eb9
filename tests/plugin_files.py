"""Plug-ins for tests: the one of the examples, small ones, and tables that are as before after a test."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glf import plugins
from glf.methods import METHODS, origins
from glf.methods.constraints import CONSTRAINTS

OWN_TERMS = Path(__file__).parent.parent / "examples" / "own_terms.py"


def constraint(name: str, weight: float = 1.0) -> str:
    """The source of a plug-in with one constraint."""
    build = f'"{name}", lambda weight: weight * glf.Variance(), {{"weight": {weight}}}'
    return f"import glf\nglf.register_constraint({build})\n"


def installed(folder: Path, name: str, source: str) -> Path:
    """A folder that holds an installed package of one module, which offers a plug-in of its name."""
    notes = folder / f"{name}-1.0.dist-info"
    notes.mkdir(parents=True)
    (notes / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (notes / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {name}\n")
    (folder / f"{name}.py").write_text(source)
    return folder


@contextmanager
def kept_tables() -> Iterator[None]:
    """Undo what plug-ins do to this process, and begin as if none had been named."""
    tables = (METHODS, CONSTRAINTS, origins, plugins._executed, plugins._named)
    before = [dict(table) for table in tables]
    modules = set(sys.modules)
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)  # type: ignore[arg-type]
    for name in {one for one in set(sys.modules) - modules if "plugin" in one}:
        del sys.modules[name]
