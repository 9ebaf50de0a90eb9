"""result.json, one per run: config, metrics, versions, machine and exact command."""

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
from glf.runfiles import RESULT
from glf.schema import RunResult, check

RESULT_SCHEMA = 2  # also of compare.json and of the report's data
_PACKAGES = ("torch", "torchvision", "timm", "lightning", "numpy", "scikit-learn")


def provenance() -> dict[str, Any]:
    """Versions, machine, command and time: what is needed to reproduce a number."""
    versions = {"glf": glf.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
        "command": command_line(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def command_line() -> str:
    """The command line of this process, quoted for a shell."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    return shlex.join([program, *sys.argv[1:]]) if program == "glf" else "(called from Python)"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def read_result(directory: Path) -> dict[str, Any]:
    """Read the result.json of a run directory."""
    path = directory / RESULT
    if not path.is_file():
        raise FileNotFoundError(f"no {RESULT} in {directory}: is it a run directory?")
    return load_json(path, RunResult)


def update_result(directory: Path, **sections: Any) -> dict[str, Any]:
    """Set sections of the run's result.json and return its content. Other sections are kept; None removes one."""
    path = directory / RESULT
    with exclusive_lock(path):  # two processes that add a section at the same time both keep theirs
        content = {**(read_result(directory) if path.exists() else {"schema": RESULT_SCHEMA}), **sections}
        content = {name: value for name, value in content.items() if value is not None}
        write_file(path, json.dumps(content, indent=1) + "\n")
    return content


def load_json(path: Path, kind: Any = dict) -> dict[str, Any]:
    """Read a JSON file written by this version of glf; ValueError names the key of a value that does not fit."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): create it again") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema == 1:
        raise ValueError(
            f"{path} was written by an earlier version of glf: `python scripts/migrate.py {path}` in a clone of glf"
            " rewrites it"
        )
    if schema != RESULT_SCHEMA:
        raise ValueError(
            f"{path} has schema {schema}, but this version of glf reads schema {RESULT_SCHEMA}: create it again"
        )
    check(content, kind, path)
    return content


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically. Characters that UTF-8 cannot encode, as in some file names, become escapes."""
    with atomic_write(path) as partial:
        partial.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
