"""One JSON file per run: configuration, metrics, versions, machine, exact command."""

import json
import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import glf
from glf.files import atomic_write, exclusive_lock

SCHEMA = 1
FILE = "result.json"
_PACKAGES = ("torch", "torchvision", "timm", "lightning", "numpy", "scikit-learn")


def provenance() -> dict[str, Any]:
    """What is needed to believe a number: versions, machine, command, time."""
    return {
        "versions": {"glf": glf.__version__, "python": platform.python_version(), **_versions()},
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
        "command": command(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def command() -> str:
    """The command line that led here, ready to be pasted."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    return shlex.join([program, *sys.argv[1:]]) if program == "glf" else "(called from Python)"


def update(directory: Path, **sections: Any) -> dict[str, Any]:
    """Put sections into the run's result.json, atomically; those that are not named stay, and None takes one out."""
    path = directory / FILE
    with exclusive_lock(path):  # of two that add a section at once, neither loses the other's
        content = {**(read(directory) if path.exists() else {"schema": SCHEMA}), **sections}
        content = {name: value for name, value in content.items() if value is not None}
        write(path, json.dumps(content, indent=1) + "\n")
    return content


def write(path: Path, content: str | bytes) -> None:
    """A file, whole or not at all. Names that are no text are written as escapes."""
    with atomic_write(path) as partial:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))


def read(directory: Path) -> dict[str, Any]:
    """The result of a run, or an error that says what is missing."""
    path = directory / FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {FILE} in {directory}: is it the directory of a run?")
    return load(path)


def load(path: Path) -> dict[str, Any]:
    """What a file holds that glf has written; other versions of it may have written another form."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({error}): make it again") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema}, this version of glf reads {SCHEMA}: make it again with this one")
    return content


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
