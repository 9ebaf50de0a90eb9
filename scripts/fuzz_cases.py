"""Cases of the fuzz: command lines with hostile names, files and settings, and what each of them may write."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any, get_type_hints

from fuzz_inputs import NAMES, SMALL_RUN, SPECIAL, damage, hostile_name, hostile_words, special
from glf.commands import COMMANDS
from glf.config.base import groups

DATA = ("photos", "photos.tar", "images.npy", "images.npz", "shards")
METHODS = "simclr simclr+lpm byol moco vicreg+dcm swav barlow_twins+adc wmse mec pcl supcon supervised metaug".split()
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

    def run(self, harm: float = 0.3) -> str:
        """A run directory, with its images next to it."""
        if not (self.work / "images.npz").exists():
            shutil.copy(self.inputs / "images.npz", self.work)
            if self.chance(harm / 3):
                self.hostile.append(damage(self.work / "images.npz", self.random))
        return self.put("adapted" if self.chance(0.2) else "run", harm)

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
        path = Path(
            {"new": "new", "name": hostile_name(self.random), "default": Path(default).stem}.get(kind, "old") + suffix
        )
        if kind == "default":
            path = Path(default)
        elif kind == "run":  # a file of a run, or one next to it whose sidecar it would be
            name = self.random.choice(RUN_FILES)
            path = Path(self.run(harm=0)) / (name if self.chance(0.5) else Path(name).stem + suffix)
        elif kind in ("new", "name") and self.chance(0.2):
            path = Path("deeper") / "still" / path
        self.creates += [path, *(path.with_suffix(end) for end in sidecars)]
        if kind == "mine":
            (self.work / path).write_text(MINE)
            self.replaces.append(path)  # it was named
        elif kind == "sidecar":
            for end in sidecars:
                (self.work / path.with_suffix(end)).write_text(MINE)
        elif kind == "link":
            (self.work / "mine.txt").write_text(MINE)
            (self.work / path).symlink_to("mine.txt")
        elif kind in SPECIAL:
            special(self.work / path, kind)
            self.creates = [one for one in self.creates if one != path]
        if kind not in ("new", "default"):
            self.hostile.append(f"{option} {kind}")
        if kind != "default":
            self.words += [option, str(path)]

    def out_folder(self, default: str, option: str = "--out", shared: bool = True, ours: str = "") -> str:
        """Add a folder to be written. ``shared`` folders may hold other files; ``ours`` may be replaced. Return its kind."""
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
                if self.chance(0.5):  # many programs have such a file
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


def _train(case: Case) -> None:
    command = case.words[0]
    if case.chance(0.2):  # a run that is there
        path = case.run()
        case.words += ["--out", path, case.random.choice(("--resume", "--resume", "--overwrite", "--dry-run"))]
        case.creates.append(Path(path))
        case.replaces += [] if case.words[-1] == "--dry-run" else [Path(path)]
        if case.words[-1] == "--resume":
            return
    else:
        kind = case.out_folder("runs", shared=False)
        if case.chance(0.3):
            case.words.append("--overwrite")
            case.replaces += [Path(case.words[-2])] if kind == "run" else []
        if case.chance(0.1):
            case.words.append("--dry-run")
            case.creates.clear()
    if command == "adapt":
        encoder = case.random.choice(("run", "run", "weights", "anything"))
        words = {"run": lambda: f"run:{case.run()}", "weights": lambda: case.put("backbone.safetensors")}
        case.words.insert(1, words.get(encoder, case.anything)())
        case.words += ["--backbone", "small_resnet"] if encoder == "weights" and case.chance(0.8) else []
    else:
        case.words += ["--no-auto", "--backbone", "small_resnet"]
    case.words += ["--data", case.put(case.random.choice(DATA))]
    case.words += SMALL_RUN[:-1] + [case.random.choice(METHODS)]
    case.words += ["--val-images", "2"] if case.chance(0.5) else []
    case.words += ["--workers", "1"] if case.chance(0.05) else []
    case.options("root")


def _evaluate(case: Case) -> None:
    kind = case.random.choice(("run", "run", "run", "file", "anything"))
    data = case.chance(0.3)
    if kind == "run":
        run = case.run()
    else:
        data = True
        run = case.put("backbone.safetensors") if kind == "file" else case.anything()
    case.words += [run, "--probe-epochs", "1", "--device", "cpu"]
    case.words += ["--data", case.put(case.random.choice(DATA))] if data else []
    case.words += ["--suite", *case.random.sample(["knn", "linear", "logistic", "fewshot", "geometry", "theory"], 2)]
    if case.chance(0.3):
        case.out_folder("runs")
    elif kind == "run":
        written = ("result.json", "features", "artifacts", "skipped.txt")
        case.creates += [Path(run) / name for name in written]
        case.replaces += [Path(run) / name for name in written]
    else:
        case.creates.append(Path("runs"))
    case.options()


def _compare(case: Case) -> None:
    case.out_folder("runs/compare", ours="comparison")
    case.replaces += [Path(case.words[-1])] if Path(case.words[-1]) in case.creates and len(case.words) > 1 else []
    case.words += ["--methods", "simclr", "--constrain", "none", "--data", case.put("images.npz"), "--seeds", "1"]
    case.words += "--jobs 1 --settings epochs 1 batch_size 8 workers 0 device cpu".split()
    case.words += "--evaluation probe_epochs 1".split()
    case.options()


def _stored(case: Case) -> None:
    """verify and doctor: nothing is written."""
    path = case.run(harm=0.6) if case.chance(0.9) else case.anything()
    case.words.append(f"{path}/result.json" if case.words[0] == "verify" and case.chance(0.3) else path)


def _report(case: Case) -> None:
    path = case.random.choice((case.run, case.run, lambda: case.put("comparison", 0.6), lambda: "."))()
    case.words.append(path)
    if path == ".":
        for name in ("run", "adapted"):
            case.put(name, 0.4)
    case.out_file((".html",), default="report.html")
    if case.chance(0.15):
        case.out_folder("figures", option="--figures")


def _shard(case: Case) -> None:
    case.words.append(case.put(case.random.choice(DATA)))
    if case.chance(0.2):
        path = case.put("shards")
        case.words += ["--out", path]
        case.creates.append(Path(path))
        case.words += ["--overwrite"] if case.chance(0.5) else []
        case.replaces += [Path(path)] if path not in case.words[1] else []
    else:
        case.out_folder("shards", shared=False)
        case.words += ["--overwrite"] if case.chance(0.3) else []
    case.words += ["--per-shard", case.random.choice(("1", "5", "1000"))]
    case.options("root")


def _encoder(case: Case) -> str:
    kind = case.random.choice(("run", "run", "file", "pixels", "pixels", "anything"))
    choices: dict[str, Callable[[], str]] = {
        "run": case.run, "file": lambda: case.put("backbone.safetensors"), "pixels": lambda: "pixels",
    }  # fmt: skip
    return choices.get(kind, case.anything)()


def _embed(case: Case) -> None:
    case.words += [_encoder(case), case.put(case.random.choice(DATA)), "--device", "cpu"]
    case.out_file((".npy", ".npy", ".csv", ".parquet"), ".json", ".skipped.txt", default="embeddings.npy")
    case.options()


def _search(case: Case) -> None:
    queries = [
        case.put("query.png") if case.chance(0.8) else case.anything() for _ in range(case.random.choice((1, 1, 2)))
    ]
    case.words += [_encoder(case), *queries, case.put(case.random.choice(DATA)), "--device", "cpu"]
    if case.chance(0.6):
        case.out_file((".csv",), default="")
    case.options()


def _outliers(case: Case) -> None:
    case.words += [_encoder(case), case.put(case.random.choice(DATA)), "--device", "cpu"]
    case.out_file((".csv",), default="outliers.csv")
    case.options()


def _export(case: Case) -> None:
    run = case.run() if case.chance(0.7) else case.put("backbone.safetensors")
    case.words += [run, "--format", case.random.choice(("safetensors", "safetensors", "timm", "torchvision"))]
    if case.chance(0.5):
        case.out_folder(str(Path(run) / "export"))
    else:
        case.out_file((".safetensors", ".pth", ".onnx"), ".md", ".json", default="")
    if case.words[-2] != "--out":
        case.creates.append(Path(run) / "export" if (case.work / run).is_dir() else Path("export"))


def _methods(case: Case) -> None:
    if case.chance(0.9):
        case.words.append(case.random.choice([*METHODS, *NAMES]))


MAKERS: dict[str, tuple[int, Callable[[Case], None]]] = {
    "pretrain": (22, _train),
    "adapt": (8, _train),
    "evaluate": (12, _evaluate),
    "compare": (1, _compare),
    "verify": (5, _stored),
    "report": (12, _report),
    "shard": (8, _shard),
    "embed": (10, _embed),
    "search": (6, _search),
    "outliers": (6, _outliers),
    "export": (7, _export),
    "doctor": (6, _stored),
    "methods": (1, _methods),
}
assert MAKERS.keys() == COMMANDS.keys()


def make_case(seed: int, number: int, work: Path, inputs: Path) -> Case:
    """Write the files of a case into ``work`` and return it: all of it follows from the seed and the number."""
    random = Random(f"{seed}:{number}")
    case = Case(random, work, inputs)
    command = random.choices(list(MAKERS), [share for share, _ in MAKERS.values()])[0]
    case.words.append(command)
    MAKERS[command][1](case)
    if case.chance(0.06):
        case.signal = (
            random.choice((signal.SIGTERM, signal.SIGINT)),
            random.choice((0.1, 0.5, 1.0, 2.0)) * random.random() + 0.05,
        )
    return case
