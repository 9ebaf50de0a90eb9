""".npy and .npz files from elsewhere: every way in which one can be damaged ends in a ValueError of one line."""

import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib.format import MAGIC_PREFIX, read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.typing import NDArray

from glf.data.source import MissingSplit
from glf.device import memory
from glf.files import open_regular, printable

Loaded = TypeVar("Loaded")

_HEADERS = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}  # by version of the format


@contextmanager
def explain_bad_array(problem: str) -> Iterator[None]:
    """Turn whatever a damaged file makes numpy and zipfile raise into a ValueError, "<problem>: reason".

    Besides ValueError they raise EOFError, RuntimeError (encrypted), NotImplementedError, OverflowError, MemoryError,
    TokenError and SyntaxError (headers are parsed as Python), and OSError without a file name (bad offsets).
    """
    try:
        yield
    except MissingSplit:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:  # it cannot be opened
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{problem}: {printable(why)}") from error


def load_array(path: Path, kind: type[Loaded]) -> Loaded:
    """Load with numpy, which goes by the content: a renamed file may turn out to be of another kind."""
    with open_regular(path) as file:  # refuses what numpy would wait for
        if file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
            file.seek(0)
            _check_size("it", _promised(file, "it"), os.fstat(file.fileno()).st_size - file.tell())
        elif not zipfile.is_zipfile(file):  # numpy would take it for a pickle, and advise to load it
            raise ValueError("its content is neither that of an .npy nor of an .npz file")
    found = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(found, kind):
        if isinstance(found, np.lib.npyio.NpzFile):
            found.close()
        raise ValueError(f"its content is that of another kind of file, {type(found).__name__}")
    return found


def array_of(archive: np.lib.npyio.NpzFile, name: str) -> NDArray[Any]:
    """Return one array of an .npz file. Memory is allocated only for what the file can hold and the machine has."""
    zipped = archive.zip
    assert zipped is not None, "the archive is open"
    with zipped.open(f"{name}.npy" if f"{name}.npy" in zipped.namelist() else name) as file:
        what = f"its array {name!r}"
        promised = _promised(file, what)
        _check_size(what, promised, zipped.getinfo(file.name).file_size)
    if promised > memory("cpu"):
        raise ValueError(
            f"{what} needs {promised / 1e9:.1f} GB of memory, and this machine has"
            f" {memory('cpu') / 1e9:.1f}: save the images as an .npy file, which need not fit into memory"
        )
    return np.asarray(archive[name])


def _promised(file: Any, what: str) -> int:
    """The number of bytes that the values after a header should have."""
    version = read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"{what} has the unknown version {version} of the format")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"{what} has Python objects, which are not read")
    if min(shape, default=0) < 0:
        raise ValueError(f"{what} has the shape {shape}")
    return math.prod(shape) * dtype.itemsize


def _check_size(what: str, promised: int, held: int) -> None:
    if promised > held:
        raise ValueError(f"{what} should have {promised:,} bytes, but the file has {held:,}")
