"""Training checkpoints: written atomically, stamped with a schema, read without executing anything."""

import os
from pathlib import Path
from typing import Any

import torch

from glf.atomic import whole

SCHEMA = 1


def save(checkpoint: dict[str, Any], path: Path) -> None:
    """Write it whole and flush it to the disk: a kill leaves the old file or the new one."""
    try:
        with whole(path) as partial, open(partial, "wb") as file:
            torch.save({**checkpoint, "glf_schema": SCHEMA}, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(f"the checkpoint {path} could not be written ({error}); the one before it is intact") from error


def load(path: Path) -> dict[str, Any]:
    """The checkpoint, or an error that says what is wrong with the file."""
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        checkpoint: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a truncated zip, a pickle of foreign classes: each raises its own
        raise ValueError(f"{path} cannot be read as a checkpoint ({type(error).__name__}: {error})") from error
    schema = checkpoint.get("glf_schema") if isinstance(checkpoint, dict) else None
    if schema != SCHEMA:
        what = "is no checkpoint of glf" if schema is None else f"has schema {schema}"
        raise ValueError(f"{path} {what}; this version of glf reads schema {SCHEMA}")
    return dict(checkpoint)
