"""Data sets of the Hugging Face Hub, ``hf:user/name``: the library ``datasets`` finds or downloads the Arrow files.

It is asked in a process of its own: there the network is off unless a download is allowed, and folders of the user
cannot be mistaken for data sets.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glf.config.base import nearest
from glf.data.tables.find import Table
from glf.data.tables.options import HUB, Address
from glf.files import printable

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME")  # may be relative
NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def hub_table(address: Address, download: bool) -> Table:
    """Return the splits of a data set of the Hub; the network is used only with ``download``."""
    name, _, split = address.base.removeprefix(HUB).partition(":")
    where = HUB + name
    if not NAME.fullmatch(name) or (split and not re.fullmatch(r"[\w.]+", split)):
        raise ValueError(f"{address.base} is no data set of the Hub: expected hf:user/name or hf:user/name:split")
    if find_spec("datasets") is None:
        raise ValueError(f"{where} needs the library datasets: pip install 'glf[hf]'")
    splits = _ask(name, address.options.get("config", ""), download)
    empty = [name for name, files in splits.items() if not files]
    if empty:
        raise ValueError(f"{where} has no rows in its split {empty[0]!r}: name another one, {where}:split")
    if split and split not in splits:
        raise ValueError(f"{where} has no split {split!r}{nearest(split, splits)}, it has {', '.join(splits)}")
    return Table(
        where=where,
        splits={split: splits[split]} if split else splits,
        image=address.options.get("image"),
        label=address.options.get("label"),
    )


@lru_cache(maxsize=4)
def _ask(name: str, configuration: str, download: bool) -> dict[str, list[Path]]:
    code = Path(__file__).with_name("hub_process.py").read_text(encoding="utf-8")
    environment = dict(os.environ)
    environment |= {folder: os.path.abspath(os.environ[folder]) for folder in FOLDERS if os.environ.get(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in sys.path if folder)
    environment["HF_DATASETS_IN_MEMORY_MAX_SIZE"] = "0"  # only files can be read from here
    environment["HF_DATASETS_TRUST_REMOTE_CODE"] = "0"  # data sets may not bring code, also in old versions
    if not download:
        environment |= dict.fromkeys(OFFLINE, "1")
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-c", code, name, configuration],
            cwd=empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if download else subprocess.PIPE,  # a download shows how far it is
            text=True,
            check=False,
        )
    try:
        answer = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except ValueError:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise ValueError(f"{HUB}{name}: the library datasets failed: {printable(last)}") from None
    if "splits" not in answer:
        raise ValueError(_explained(name, answer, download))
    return {split: [Path(file) for file in files] for split, files in answer["splits"].items()}


def _explained(name: str, answer: dict[str, Any], download: bool) -> str:
    """One line about what ``datasets`` raised."""
    why = printable(" ".join(answer["why"].split()))
    if "Config name is missing" in why or "BuilderConfig" in why:
        return f"{HUB}{name}: {why:.300}: add ?config=NAME"
    if not download and {"ConnectionError", "FileNotFoundError"} & set(answer["kinds"]):
        return (
            f"{HUB}{name} is not on this machine, among what the library datasets has prepared: --download fetches it"
            " from the Hugging Face Hub, if the name is right"
        )
    advice = "check the name, the network, and for a private one the login (hf auth login)"
    return f"{HUB}{name} cannot be loaded ({answer['kinds'][0]}: {why:.300}): {advice}"
