"""Cases of the fuzz by command: what is given to it, and what it may write."""

import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

from fuzzing.case import Case
from fuzzing.inputs import NAMES, SMALL_RUN
from glf.commands import COMMANDS

DATA = ("photos", "photos.tar", "images.npy", "images.npz", "shards")
METHODS = "simclr simclr+lpm byol moco vicreg+dcm swav barlow_twins+adc wmse mec pcl supcon supervised metaug".split()

ENCODER_OPTIONS = ("weights", "image_size")  # of library models, which are not there


def _train(case: Case) -> None:
    command = case.words[0]
    if case.chance(0.25):  # a run that is there
        path = case.run("adapted" if command == "adapt" else "run")
        case.words += ["--out", path, case.random.choice(("--resume", "--resume", "--overwrite", "--dry-run"))]
        case.creates.append(Path(path))
        case.replaces += [] if case.words[-1] == "--dry-run" else [Path(path)]
        if case.words[-1] == "--resume":
            return
    else:
        kind = case.out_folder("runs", shared=False)
        if case.chance(0.6 if kind in ("mine", "link") else 0.3):
            case.words.append("--overwrite")
            case.replaces += [Path(case.words[-2])] if kind == "run" else []
        if case.chance(0.1):
            case.words.append("--dry-run")
            case.creates.clear()
    if command == "adapt":
        encoder = case.random.choice(("run", "run", "run", "run", "weights", "anything"))
        words = {"run": lambda: f"run:{case.run()}", "weights": lambda: case.put("backbone.safetensors")}
        case.words.insert(1, words.get(encoder, case.anything)())
        case.words += ["--backbone", "small_resnet"] if encoder == "weights" and case.chance(0.8) else []
    else:
        case.words += ["--no-auto", "--backbone", "small_resnet"]
    case.words += ["--data", case.put(case.random.choice(DATA))]
    case.words += [*SMALL_RUN[:-1], case.random.choice(METHODS)]
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
    into = run
    if case.chance(0.3) and case.out_folder("runs") != "default":
        into = case.words[-1]
    if Path(into) == Path(run) and (case.work / run).is_dir():
        written = ("result.json", "features", "artifacts", "skipped.txt")
        case.creates += [Path(run) / name for name in written]
        case.replaces += [Path(run) / name for name in written]
    elif into == run:
        case.creates.append(Path("runs"))
    case.options()


def _compare(case: Case) -> None:
    case.out_folder("runs/compare", ours="comparison")
    case.replaces += [Path(case.words[-1])] if Path(case.words[-1]) in case.creates and len(case.words) > 1 else []
    case.words += ["--methods", "simclr", "--constrain", "none", "--data", case.put("images.npz"), "--seeds", "1"]
    case.words += "--jobs 1 --settings epochs 1 batch_size 8 workers 0 device cpu".split()
    case.words += "--evaluation probe_epochs 1".split()
    case.options("methods", "constrain")


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
    case.out_file((".npy", ".npy", ".csv", ".parquet"), ".glf.json", ".glf.skipped.txt", default="embeddings.npy")
    case.options(*ENCODER_OPTIONS)


def _search(case: Case) -> None:
    queries = [
        case.put("query.png") if case.chance(0.8) else case.anything() for _ in range(case.random.choice((1, 1, 2)))
    ]
    case.words += [_encoder(case), *queries, case.put(case.random.choice(DATA)), "--device", "cpu"]
    if case.chance(0.6):
        case.out_file((".csv",), ".glf.json", default="")
    case.options(*ENCODER_OPTIONS)


def _outliers(case: Case) -> None:
    case.words += [_encoder(case), case.put(case.random.choice(DATA)), "--device", "cpu"]
    case.out_file((".csv",), ".glf.json", default="outliers.csv")
    case.options(*ENCODER_OPTIONS)


def _export(case: Case) -> None:
    run = case.run() if case.chance(0.7) else case.put("backbone.safetensors")
    case.words += [run, "--format", case.random.choice((*5 * ["safetensors"], "timm", "torchvision"))]
    if case.chance(0.5):
        case.out_folder(str(Path(run) / "export"))
    else:
        case.out_file((*5 * (".safetensors",), ".pth"), ".glf.md", ".glf.json", default="")
        if (case.work / case.words[-1]).is_dir():
            case.creates.append(Path() if (case.work / case.words[-1]).is_symlink() else Path(case.words[-1]))
    if case.words[-2] != "--out":
        case.creates.append(Path(run) / "export" if (case.work / run).is_dir() else Path("export"))


def _push(case: Case) -> None:
    run = case.run() if case.chance(0.7) else case.put("backbone.safetensors")
    name = "user/name" if case.chance(0.7) else case.random.choice(NAMES)
    case.words += [run, name, "--dry-run"]  # never without: a token may be there
    case.words += ["--license", case.random.choice(("mit", *NAMES))] if case.chance(0.3) else []
    if case.chance(0.5):
        case.out_folder(str(Path(run) / "export"))
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
    "export": (6, _export),
    "push": (1, _push),
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
