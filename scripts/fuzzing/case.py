"""A case of the fuzz: a command line with hostile names, files and settings, and what it may write."""

import shutil
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any, get_type_hints

from fuzzing.inputs import NAMES, SPECIAL, damage, hostile_name, hostile_words, special
from glf.commands import COMMANDS
from glf.config.base import groups

RUN_FILES = "config.json result.json metrics.jsonl train.log backbone.safetensors skipped.txt".split()
OWN = {"out", "figures", "study", "resume", "overwrite", "dry_run"}  # options that say what is written
MINE = "a file of the user\n"


@dataclass
class Case:
    """A command line in a folder of its own, and what it may write: paths relative to that folder."""

    random: Random
    work: Path
    inputs: Path
    words: list[str] = field(default_factory=list)
    creates: list[Path] = field(default_factory=list)  # may appear, with everything below
    replaces: list[Path] = field(default_factory=list)  # may change or vanish, with everything below
    hostile: list[str] = field(default_factory=list)  # what was done to names and files
    signal: tuple[int, float] | None = None  # number, seconds after the start

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def put(self, name: str, harm: float = 0.25) -> str:
        """Copy an input, often damaged or under a hostile name; return its name."""
        source = self.inputs / name
        target = self.work / name
        if self.chance(0.2):
            target = self.work / hostile_name(self.random, source.suffix)
            target.parent.mkdir(exist_ok=True)
            self.hostile.append(f"{name} is {target.name!r}")
        if not target.exists() and not target.is_symlink():
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
            if name == "photos" and self.chance(0.3):
                files = sorted(target.rglob("*.png"))
                one = files[0].parent / hostile_name(self.random, ".png")
                one.parent.mkdir(exist_ok=True)
                files[0].rename(one)
                self.hostile.append(f"photo {one.name!r}")
            if self.chance(harm):
                self.hostile.append(damage(target, self.random))
        return str(target.relative_to(self.work))

    def run(self, name: str = "", harm: float = 0.3) -> str:
        """A run directory, with its images next to it."""
        if not (self.work / "images.npz").exists():
            shutil.copy(self.inputs / "images.npz", self.work)
            if self.chance(harm / 3):
                self.hostile.append(damage(self.work / "images.npz", self.random))
        return self.put(name or ("adapted" if self.chance(0.2) else "run"), harm)

    def anything(self) -> str:
        """The name of a file for an option: an input, nothing, or no file."""
        if self.chance(0.5):
            names = ("run", "backbone.safetensors", "images.npy", "images.npz", "photos", "query.png", "shards")
            name = self.put(self.random.choice(names))
            return f"{name}/checkpoints/last.ckpt" if name == "run" and self.chance(0.7) else name
        path = self.work / f"special-{len(self.hostile)}.pt"
        kind = self.random.choice((*SPECIAL, "missing", "name"))
        if kind == "name":
            return self.random.choice([*NAMES, ""])
        if kind != "missing":
            special(path, kind)
            self.hostile.append(f"{path.name} is a {kind}")
        return path.name

    def options(self, *without: str) -> None:
        """Add some options of the command with hostile or plausible values; some were given before."""
        config = COMMANDS[self.words[0]].config
        hints: dict[str, Any] = {}
        for kind in (config, *(type(inner) for inner in groups(config).values())):
            hints |= {name: hint for name, hint in get_type_hints(kind).items() if name not in groups(config)}
        required = {one.name for one in fields(config) if str(one.default).endswith("MISSING_TYPE object>")}
        known = sorted(hints.keys() - OWN - set(without) - required - {"run", "data", "images", "name", "encoder"})
        for _ in range(self.random.choice((0, 0, 1, 1, 1, 2, 3)) if known else 0):
            name = self.random.choice(known)
            self.words += hostile_words(name, hints[name], self.random, self.anything)
        if self.chance(0.02):
            self.words += ["--no-such-option", self.random.choice(NAMES)]

    def out_file(self, suffixes: tuple[str, ...], *sidecars: str, default: str, option: str = "--out") -> None:
        """Add a file to be written: new, or something that is there already."""
        suffix = self.random.choice(suffixes)
        kind = self.random.choice([*6 * ["new"], *3 * ["name"], "default", "mine", "sidecar", "run", "link", *SPECIAL])
        kind = "new" if kind == "default" and not default else kind
        path = Path({"new": "new", "name": hostile_name(self.random)}.get(kind, "old") + suffix)
        if kind == "default":
            path = Path(default)
        elif kind == "run":  # a file of a run, or one next to it whose sidecar it would be
            name = self.random.choice(RUN_FILES)
            path = Path(self.run(harm=0)) / (name if self.chance(0.5) else Path(name).stem + suffix)
        elif kind in ("new", "name") and self.chance(0.2):
            path = Path("deeper") / "still" / path
        self.creates += [path, *(path.with_name(path.name + end) for end in sidecars)]
        if kind == "mine":
            (self.work / path).write_text(MINE)
        elif kind == "sidecar":
            for end in sidecars:
                (self.work / path.with_name(path.name + end)).write_text(MINE)
        elif kind == "link":
            (self.work / "mine.txt").write_text(MINE)
            (self.work / path).symlink_to("mine.txt")
        elif kind in SPECIAL:
            special(self.work / path, kind)
            self.creates.append(Path("nowhere"))
        if kind not in ("new", "default"):
            self.hostile.append(f"{option} {kind}")
        if kind != "default":
            self.words += [option, str(path)]

    def out_folder(self, default: str, option: str = "--out", shared: bool = True, ours: str = "") -> str:
        """Add a folder to be written: new, or there already; return which.

        Folders that are ``shared`` may hold other files. ``ours`` is an input that may be continued.
        """
        kinds = [*6 * ["new"], *3 * ["name"], "empty", "default", "mine", "mine", "file", "link", "run", *SPECIAL]
        kind = self.random.choice(kinds + 3 * ["ours"] if ours else kinds)
        if kind == "default":
            self.creates.append(Path(default))
            return kind
        path = Path(hostile_name(self.random) if kind == "name" else "old")
        if kind in ("new", "name"):
            path = Path("runs") / path if self.chance(0.5) else path
            self.creates.append(path)
        elif kind in ("empty", "mine", "link"):
            folder = self.work / ("elsewhere" if kind == "link" else path)
            folder.mkdir()
            if kind == "link":
                (self.work / path).symlink_to("elsewhere")
            if kind == "mine" or (kind == "link" and self.chance(0.5)):
                (folder / "mine.txt").write_text(MINE)
                if self.chance(0.7):  # many programs have such a file
                    (folder / self.random.choice(RUN_FILES[:2])).write_text('{"name": "mine"}\n')
                if self.chance(0.3):
                    (folder / "shards.json").write_text("{}\n")
            if shared or kind == "empty" or not any(folder.iterdir()):
                self.creates += [path, Path(folder.name)]
        elif kind == "file":
            (self.work / path).write_text(MINE)
        elif kind == "run":
            path = Path(self.run(harm=0))
            if shared:
                self.creates.append(path)
        elif kind == "ours":
            path = Path(self.put(ours))
            self.creates.append(path)
        else:
            special(self.work / path, kind)
            if kind == "folder" or (kind == "nowhere" and shared):
                self.creates += [path, Path("nowhere")]
            elif kind == "folder link":
                self.creates += [path, Path()] if shared else []
        if kind not in ("new", "default", "empty"):
            self.hostile.append(f"{option} {kind}")
        self.words += [option, str(path)]
        return kind
