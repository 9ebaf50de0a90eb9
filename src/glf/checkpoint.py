"""Training checkpoints: written atomically, stamped with a schema, read without executing anything."""

import os
from pathlib import Path
from typing import Any

import torch

from glf.files import atomic_write

SCHEMA = 1


def save(checkpoint: dict[str, Any], path: Path) -> None:
    """Write it whole and flush it to the disk: a kill leaves the old file or the new one."""
    try:
        with atomic_write(path) as partial, open(partial, "wb") as file:
            torch.save({**checkpoint, "glf_schema": SCHEMA}, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        why = _cause(error)
        if why is None:
            raise
        raise OSError(
            f"the checkpoint {path} could not be written ({why}); the one before it is intact: make room there, or"
            " whatever else it takes, and go on with --resume"
        ) from error


def _cause(error: BaseException | None) -> str | None:
    """What the system said. torch's writer, unwinding after a failed write, replaces it by a complaint of its own."""
    found = None
    while error is not None:
        if isinstance(error, OSError):
            found = error.strerror or found or str(error)
        error = error.__cause__ or error.__context__
    return found


def load(path: Path) -> dict[str, Any]:
    """The checkpoint, or an error that says what is wrong with the file."""
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        checkpoint: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a truncated zip, a pickle of foreign classes: each raises its own
        raise ValueError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}: {error}): train anew with --overwrite"
        ) from error
    schema = checkpoint.get("glf_schema") if isinstance(checkpoint, dict) else None
    if schema != SCHEMA:
        what = "is no checkpoint of glf" if schema is None else f"has schema {schema}"
        raise ValueError(f"{path} {what}; this version of glf reads schema {SCHEMA}")
    return dict(checkpoint)
