"""Small fixed results: the files of a run, of an adapted run and of a comparison."""

import json
from pathlib import Path
from typing import Any

from glf.evaluation.theorem import LABELS
from glf.result import RESULT_SCHEMA, read_result, update_result

HARMFUL = "<script>alert(1)</script>"
QUOTED = 'it\'s "quoted" & odd'


def a_run(path: Path, name: str = "photos", classes: tuple[str, str] = ("cat", "dog"), **changed: Any) -> Path:
    """A trained and evaluated run, with data for every section of the page."""
    rows = {
        "pixels": {"knn5": 0.5, "rank": 3.0},
        "untrained": {"knn5": 0.4, "rank": 2.0},
        "trained": {"knn5": 0.625, "rank": 12.5, **THEOREM},
    }
    intervals = {"pixels": [0.45, 0.55], "untrained": [0.35, 0.45], "trained": [0.6, 0.65]}
    evaluation = {
        "data": name,
        "split": "test",
        "test": 2000,
        "train": 9000,
        "classes": list(classes),
        "rows": rows,
        "percent": ["knn5"],
        "protocols": {"knn5": "k-NN (k = 5)", "rank": "effective rank", "info_nce": "InfoNCE", **LABELS},
        "details": {
            column: {"knn5": {"interval": interval, "per_class": [0.75, 0.5]}} for column, interval in intervals.items()
        },
    }
    term = {"weight": 0.3, "name": "dcm", "formula": "KL(Gaussian row || t row)"}
    content = {
        "method": "simclr+adc",
        "objective": {"align": [{"weight": 1, "name": "cosine", "formula": "-cos(z, z')"}], "constrain": [term]},
        "data": {"name": name, "train": 9000, "val": 1000, "skipped": 0, "classes": list(classes)},
        "backbone": {"name": "small_resnet"},
        "config": {"epochs": 2, "batch_size": 128, "seed": 0, "prior": "pixels"},
        "training": {"val/rank": 12.5, "val/spread": 0.7, "images_per_second": 250.0, "lr": 0.001},
        "doctor": [],
        "machine": {"processor": "P", "cores": 2},
        "versions": {"glf": "0", "torch": "2"},
        "command": "glf pretrain --data 'my photos'",
        "time": "2026-01-01T00:00:00+00:00",
        "evaluation": evaluation,
        **changed,
    }
    path.mkdir(parents=True)
    update_result(path, **content)
    (path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 5.0, "align/cosine": 2.0, "constrain/dcm": 3.0, "share/constrain/dcm": 0.25}\n'
        '{"step": 2, "loss": 4.0, "align/cosine": 1.0, "constrain/dcm": NaN, "val/knn": 0.5}\n'
        '{"step": 3, "lo'
    )
    _artifacts(path / "artifacts", classes)
    return path


THEOREM = {
    "info_nce": 5.4, "deviation": 0.4, "log_ratio": -3.2, "bound": 2.6, "cross_entropy": 2.2, "slack": 0.4,
    "variance": 0.2, "imbalance": 0.0, "finite": 0.01, "proved": 2.41, "proved_slack": 0.21, "chance": 0.69,
}  # fmt: skip


def _artifacts(folder: Path, classes: tuple[str, str]) -> None:
    def image(row: int, of: int, **more: Any) -> dict[str, Any]:
        return {"row": row, "class": classes[of], **more}

    sheet = {"count": 4, "columns": 2, "side": 8}
    content = {
        "schema": RESULT_SCHEMA,
        "split": "test",
        "columns": {
            "trained": {"spectrum": [0.7, 0.3], "similarity": {"same": [0, 0.25, 0.75], "different": [0, 1, 0]}},
        },
        "map": {"points": [[0, 0.25], [1, 0.75], [0.5, 0.5], [0.25, 0.25]], "group": [0, 1, 1, 0],
                "groups": list(classes), "by": "class", "rows": [5, 7, 11, 13], "sheet": sheet},
        "neighbours": {"queries": [image(1, 0, near=[image(2, 0, similarity=0.9), image(3, 1, similarity=0.8)])],
                       "sheet": {**sheet, "count": 3}},
        "views": {"recipe": "gentle", "images": [image(1, 0), image(2, 1)], "sheet": sheet},
        "outliers": {"prior": "pixels", "images": 4, "companions": 3, "largest": 1.0986, "median": 0.5,
                     "histogram": [1, 2, 1], "found": [image(3, 1, entropy=1.0), image(0, 0, entropy=0.9)],
                     "sheet": sheet},
    }  # fmt: skip
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(content))
    for name in ("map", "neighbours", "views", "outliers"):
        (folder / f"{name}.webp").write_bytes(f"no picture: {name}".encode())


CANDIDATES = {
    "frozen": {"kept": 1.0, "rank": 20.0, "uniformity": -1.5, "recall": 0.9, "knn": 0.822},
    "average 0.25": {"kept": 0.95, "rank": 21.0, "uniformity": -1.6, "recall": 0.91, "knn": 0.83},
    "average 0.5": {"kept": 0.9, "rank": 22.0, "uniformity": -1.7, "recall": 0.92, "knn": 0.84},
    "average 0.75": {"kept": 0.83, "rank": 23.0, "uniformity": -1.8, "recall": 0.93, "knn": 0.863},
    "adapted": {"kept": 0.7, "rank": 24.0, "uniformity": -1.9, "recall": 0.94, "knn": 0.85},
}


def an_adapted_run(
    path: Path, chosen: str = "average 0.75", *, labelled: bool = True, by: str = "knn", **changed: Any
) -> Path:
    """An adapted and evaluated run: the frozen encoder takes the place of the untrained network."""
    candidates = {
        name: {key: value for key, value in values.items() if labelled or key != "knn"}
        for name, values in CANDIDATES.items()
    }
    share = {"frozen": 0.0, "adapted": 1.0}.get(chosen) or float(chosen.partition(" ")[2] or 0)
    a_run(path)
    before = read_result(path)
    evaluation = before["evaluation"]
    for part in ("rows", "details"):
        names = ("pixels", "untrained", "trained")
        evaluation[part] = {name.replace("untrained", "frozen"): evaluation[part][name] for name in names}
    content = {
        "kind": "adapt",
        "config": {**before["config"], "encoder": "timm:resnet18", "train": "tail", "weights": None},
        "adaptation": {"candidates": candidates, "chosen": chosen, "share": share, "by": by},
        "evaluation": evaluation,
    }
    update_result(path, **(content | changed))
    (path / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0, "val/kept": 0.9}\n{"step": 2, "val/kept": 0.7}\n')
    data = path / "artifacts" / "report.json"
    found = json.loads(data.read_text())
    near = found["neighbours"]["queries"][0]["near"]
    query = {"row": 1, "class": "cat", "kept": 1, "before": near, "after": near[::-1]}
    found["map_frozen"] = {"points": [[0, 0.5], [1, 0.5], [0.75, 0.25], [0.25, 0.75]]}
    found["changed"] = {"images": 4, "neighbours": 2, "kept": 0.875, "queries": [query],
                        "sheet": {"count": 5, "columns": 3, "side": 8}}  # fmt: skip
    data.write_text(json.dumps(found))
    (path / "artifacts" / "changed.webp").write_bytes(b"no picture: changed")
    return path


VALUES = {"none": (0.50, 0.52, 0.51), "0.1": (0.52, 0.542, 0.528), "1": (0.51, 0.519, 0.513), "10": (0.40, 0.44, 0.41)}


def a_comparison(path: Path, **changed: Any) -> Path:
    """A comparison that sweeps a setting, with the feature map of its base."""
    runs = [
        {"data": "d", "method": "simclr", "variant": variant, "seed": seed, "path": f"d/simclr/{variant}/{seed}",
         "values": {"linear": value, "knn5": value / 2}, "machine": {"processor": "P", "cores": 2}}
        for variant, values in VALUES.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    how = {"protocols": {"linear": "linear probe", "knn5": "k-NN (k = 5)"}, "test": 9, "train": 99, "split": "test"}
    content = {
        "schema": RESULT_SCHEMA,
        "title": "The weight of <DCM>",
        "finding": "",
        "methods": ["simclr"],
        "data": ["d"],
        "base": "none",
        "variants": {"none": {}, **{name: {"constrain": "adc", "nu": float(name)} for name in ("0.1", "1", "10")}},
        "runs": runs,
        "references": {"d": {"pixels": {"0": {"linear": 0.25}}}},
        "failed": {"d/x/0": "no & no"},
        "evaluated": {"d": how},
        "machine": {"processor": "P", "cores": 2},
        "versions": {"torch": "2"},
        "command": "glf compare",
        **changed,
    }
    path.mkdir(parents=True)
    (path / "compare.json").write_text(json.dumps(content))
    a_run(path / "d" / "simclr" / "none" / "0")
    return path
