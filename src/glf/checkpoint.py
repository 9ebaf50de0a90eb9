"""Training checkpoints: written atomically, versioned by a schema number, read without executing code."""

import os
from pathlib import Path
from typing import Any

import torch

from glf.files import atomic_write

CHECKPOINT_SCHEMA = 2


def save_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint atomically and flush it to the disk: after a kill, the old or the new file is there."""
    try:
        with atomic_write(path) as partial, open(partial, "wb") as file:
            torch.save({**checkpoint, "glf_schema": CHECKPOINT_SCHEMA}, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        why = _system_error(error)
        if why is None:
            raise
        raise OSError(
            f"the checkpoint {path} could not be written ({why}); the previous one is intact: free some space there, or"
            " fix what else is wrong, then continue with --resume"
        ) from error


def _system_error(error: BaseException | None) -> str | None:
    """The operating system's message; torch's writer replaces it by one of its own after a failed write."""
    message = None
    while error is not None:
        if isinstance(error, OSError):
            message = error.strerror or message or str(error)
        error = error.__cause__ or error.__context__
    return message


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this version of glf."""
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        checkpoint: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a truncated zip, a pickle with other classes: each raises its own
        raise ValueError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}: {error}): train again with --overwrite"
        ) from error
    schema = checkpoint.get("glf_schema") if isinstance(checkpoint, dict) else None
    if schema is None:
        raise ValueError(f"{path} is not a checkpoint of glf")
    if schema != CHECKPOINT_SCHEMA:
        raise ValueError(
            f"{path} has schema {schema}, but this version of glf reads schema {CHECKPOINT_SCHEMA}: a run of an earlier"
            " version cannot be resumed; train it again with --overwrite (its backbone can still be evaluated)"
        )
    return dict(checkpoint)
