"""Inputs of the fuzz: good ones, made once through the command line; hostile names, files and values."""

import io
import json
import os
import pickle
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
from PIL import Image

EXECUTED = "executed"  # a folder that appears when something in a file or a name is executed
SMALL_RUN = "--epochs 1 --batch-size 8 --workers 0 --log-every 1 --device cpu --method simclr".split()
NAMES = [
    "two words", "it's", 'quo"te', "[bold]", "[/red]", "[/]", "[link=x]y[/link]", "new\nline", "tab\t", "\x1b[2J", "\r",
    "ünï-日本", "\u202egnp", os.fsdecode(b"caf\xe9"), os.fsdecode(b"\xff\xfe"), "-rf", "--out", "%s%n%d", "{0}", "{}",
    "{0..3}", "a,b", "a=b", "a#b", "a?b", "*", "~", "back\\slash", f"$(mkdir {EXECUTED})", f"`mkdir {EXECUTED}`",
    f"; mkdir {EXECUTED}", "| cat", "<b>&amp;", "x" * 180, "é" * 90, ".hidden", "...", "http:", "timm:", "CON", " ",
]  # fmt: skip
INTEGERS = "0 -1 1 1 2 2 3 7 1000000 2147483648 9223372036854775808 1.5 x".split()
NUMBERS = "0 -1 1 2 1e30 -1e30 nan inf -inf 1e-300 0.5 0.1 2147483648 x".split()
# Options that ask for more work, more processes or more machines: a large value is no mistake, and is not tried.
COSTLY = set(
    "epochs probe_epochs finetune_epochs detect_epochs seeds jobs devices nodes workers accumulate compile".split()
)
CHEAP = ["0", "-1", "nan", "x", "", "1.5"]
COMMANDS = [f"pipe:mkdir {EXECUTED}", f"{{pipe,pipe}}:mkdir {EXECUTED}", f"x.tar::pipe:mkdir {EXECUTED}"]
JSON_VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 10**12, 10**30, float("nan"), float("inf"), "", "x", "[/red]", "../..", "/",
    "\ud800", [], {}, [[]], {"a": []}, [None], ["x"] * 3, *COMMANDS,
]  # fmt: skip


class Harmful:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (EXECUTED,)


def prepare(folder: Path, run: Callable[[list[str]], None]) -> None:
    """Write the good inputs; ``run`` runs a command in the folder."""
    random = np.random.default_rng(0)
    for i in range(12):
        side = int(random.integers(16, 33))
        path = folder / "photos" / ("boot", "coat")[i % 2] / f"{i:02}.{('png', 'jpg')[i % 3 == 0]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (side, side + i % 4, 3), np.uint8)).save(path)
    shutil.copy(folder / "photos" / "boot" / "02.png", folder / "query.png")
    with tarfile.open(folder / "photos.tar", "w") as tar:
        tar.add(folder / "photos", "photos")
    pixels = random.integers(0, 256, (36, 16, 16, 3), np.uint8)
    np.save(folder / "images.npy", pixels)
    labels = np.arange(36) % 2
    np.savez(
        folder / "images.npz",
        train_images=pixels[:24], train_labels=labels[:24], test_images=pixels[24:], test_labels=labels[24:],
    )  # fmt: skip
    run(["shard", "photos", "--out", "shards", "--per-shard", "5"])
    data = ["--data", "images.npz"]
    run(["pretrain", *data, "--no-auto", *SMALL_RUN, "--out", "run", "--val-images", "4"])
    run(["evaluate", "run", "--suite", "knn", "linear", "geometry", "--probe-epochs", "1", "--device", "cpu"])
    run(["adapt", "run:run", *data, *SMALL_RUN, "--out", "adapted"])
    run(["export", "run", "--format", "safetensors", "--out", "backbone.safetensors"])
    settings = "epochs 1 batch_size 8 workers 0 device cpu".split()
    evaluation = "probe_epochs 1".split()
    compare = ["compare", "--methods", "simclr", "--constrain", "none", *data, "--seeds", "1", "--jobs", "1"]
    run([*compare, "--settings", *settings, "--evaluation", *evaluation, "--out", "comparison"])


def hostile_name(random: Random, suffix: str = "") -> str:
    """A name for a file; one with a slash cannot be."""
    return random.choice(NAMES) + suffix


def special(path: Path, kind: str) -> None:
    """Make something at ``path`` that is no file."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":  # never the machine's own /dev/null: root could replace it
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError:
            os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "nowhere":
        path.symlink_to("nowhere")
    elif kind == "folder link":
        path.symlink_to(".", target_is_directory=True)
    else:
        path.mkdir()


SPECIAL = ("fifo", "device", "loop", "nowhere", "folder link", "folder")


def damage(path: Path, random: Random) -> str:
    """Damage a file, or one of a folder's; return what was done."""
    if path.is_dir():
        files = sorted(item for item in path.rglob("*") if item.is_file() and item.stat().st_size)
        known = [item for item in files if item.suffix in (".json", ".jsonl", ".safetensors")]
        path = random.choice(known if known and random.random() < 0.6 else files)
    if path.suffix in (".json", ".jsonl") and random.random() < 0.7:
        return f"{path.name}: {_damage_json(path, random)}"
    data = path.read_bytes()
    kinds = [
        "truncated",
        "flipped",
        "flipped",
        "empty",
        "random",
        "pickle",
        "longer",
        "text",
        "special",
        "mode",
        "gone",
    ]
    kind = random.choice(kinds + 4 * ["header"] if path.suffix == ".safetensors" else kinds)
    if kind == "truncated":
        path.write_bytes(data[: random.randrange(len(data) + 1)])
    elif kind == "flipped":
        changed = bytearray(data)
        for _ in range(random.choice((1, 3, 20))):
            changed[random.randrange(min(len(data), random.choice((64, 10**9))))] ^= 1 << random.randrange(8)
        path.write_bytes(changed)
    elif kind in ("empty", "random", "text"):
        path.write_bytes({"empty": b"", "random": random.randbytes(300), "text": b"no such thing\n"}[kind])
    elif kind == "pickle":
        path.write_bytes(_objects() if path.suffix == ".npy" else pickle.dumps(Harmful()))
    elif kind == "longer":
        path.write_bytes(data + random.randbytes(100))
    elif kind == "header":
        _damage_header(path, random)
    elif kind == "mode":
        path.chmod(0)
    else:
        path.unlink()
        if kind == "special":
            kind = random.choice(SPECIAL)
            special(path, kind)
    return f"{path.name}: {kind}"


def _objects() -> bytes:
    """An .npy file of Python objects."""
    out = io.BytesIO()
    np.save(out, np.array([Harmful()] * 12, dtype=object), allow_pickle=True)
    return out.getvalue()


def _damage_header(path: Path, random: Random) -> None:
    """Damage the description of the tensors in a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if random.random() < 0.3:
        path.write_bytes(random.choice((0, 2**63, length - 1, length + 8)).to_bytes(8, "little") + data[8:])
        return
    header = json.loads(data[8 : 8 + length])
    described = header.get("__metadata__", {})
    if described and random.random() < 0.6:  # its values are text: here a config in JSON
        name = random.choice(sorted(described))
        try:
            described[name] = json.dumps(_replaced(json.loads(described[name]), random)[0])
        except ValueError:
            described[name] = "x"
    else:
        header = _replaced(header, random)[0]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def _damage_json(path: Path, random: Random) -> str:
    whole = {"deep": "[" * 100_000, "nan": "NaN", "list": "[]", "null": "null", "huge": "9" * 5000, "half": '{"a": '}
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = random.randrange(len(lines))
    if random.random() < 0.25:
        kind = random.choice(sorted(whole))
        lines[at] = whole[kind]
    else:
        content, kind = _replaced(json.loads(lines[at]), random)
        if isinstance(content, dict) and "data" in content and random.random() < 0.15:
            content["data"] = kind = random.choice(COMMANDS)
        lines[at] = json.dumps(content, indent=None if path.suffix == ".jsonl" else 1)
    path.write_text("\n".join(lines) + "\n")
    return kind


def _replaced(content: Any, random: Random, name: str = "") -> tuple[Any, str]:
    """The content with one value replaced, removed or added, and what was done."""
    if isinstance(content, dict | list) and content and random.random() < 0.85:
        key = random.choice(sorted(content) if isinstance(content, dict) else range(len(content)))
        if isinstance(content, dict) and random.random() < 0.1:
            removed = {other: value for other, value in content.items() if other != key}
            return removed, f"{name}/{key} removed"
        changed = dict(content) if isinstance(content, dict) else list(content)
        changed[key], what = _replaced(content[key], random, f"{name}/{key}")
        return changed, what
    values = [value for value in JSON_VALUES if name.rpartition("/")[2] not in COSTLY or value in (None, 0, -1, "x")]
    value = random.choice(values)
    if isinstance(content, dict) and random.random() < 0.3:
        return {**content, random.choice(NAMES): value}, f"{name} has one more"
    return value, f"{name} = {value!r}"


def hostile_words(name: str, hint: Any, random: Random, path: Callable[[], str]) -> list[str]:
    """Words for the option ``name`` of this type, hostile or plausible; ``path`` gives names of files."""
    inner = [one for one in get_args(hint) if one is not NoneType]
    kind = get_origin(hint)
    if kind in (Union, UnionType):
        if inner == [bool]:
            return [f"--{name.replace('_', '-')}", random.choice(("True", "False", "None", "x", ""))]
        return hostile_words(name, inner[0], random, path)
    flag = f"--{name.replace('_', '-')}"
    if hint is bool:
        return [random.choice((flag, f"--no-{flag[2:]}")) if name not in COSTLY else f"--no-{flag[2:]}"]
    if kind is tuple:
        count = len(inner) if Ellipsis not in inner else random.choice((0, 1, 1, 2, 3))
        return [flag, *(_value(name, inner[0], random, path) for _ in range(count))]
    if kind is dict:
        key = random.choice(("temperature", "weight", "epochs", "x", "", "[/red]", "queue", "momentum"))
        return [flag, *random.choice(((), (key,), (key, _value("", inner[1], random, path))))]
    return [flag, _value(name, hint, random, path)]


def _value(name: str, hint: Any, random: Random, path: Callable[[], str]) -> str:
    if get_origin(hint) is Literal:
        return str(random.choice([*get_args(hint), *get_args(hint), "", "x", "[/red]"]))
    if hint in (int, float):
        return random.choice(CHEAP if name in COSTLY else INTEGERS if hint is int else NUMBERS)
    if hint is Path:
        return path()
    known = {
        "prior": ["pixels", "run:PATH", "file:PATH", "timm:", "file:", "run:", "timm:resnet18"],
        "backbone": ["small_resnet", "timm:resnet10t", "torchvision:resnet18", "resnet999", "timm:hf-hub:x/y"],
        "method": ["byol+lpm", "swav", "vicregl", "supcon", "barlow_twins+dcm", "simclr+", "+", "moco+sphere", "lmcl"],
        "recipe": ["tiny", "cifar", "imagenet"],
        "augment": ["gentle", "mild", "none"],
        "device": ["cpu", "gpu", "mps", "auto", "cuda:99"],
        "settings": ["1"],
        "compare_with": ["run", "pixels", "timm:resnet18", "PATH"],
    }.get(name, ["PATH"])  # fmt: skip
    value = random.choice([*known, *known, *known, random.choice(NAMES), "", "[/red]"])
    return value.replace("PATH", path()) if "PATH" in value else value
