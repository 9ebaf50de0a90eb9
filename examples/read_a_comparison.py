"""Reading compare.json in Python: results, and the difference that a constraint makes, paired by seed.

Run: python examples/read_a_comparison.py [runs/compare/compare.json]; without a file it runs a tiny comparison first.
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import mean

import numpy as np

import glf
from glf import load_images


def tiny(place: Path) -> Path:
    """Compare SimCLR with and without ADC on a few bundled images; the numbers are for reading only."""
    train, test = load_images("fashion-mini", "train"), load_images("fashion-mini", "test")
    arrays = {"train_images": train.pixels[:300], "train_labels": train.targets[:300]}
    np.savez(place / "few.npz", test_images=test.pixels[:200], test_labels=test.targets[:200], **arrays)
    settings = {"epochs": "1", "batch_size": "64", "device": "cpu"}
    glf.compare(
        methods=("simclr",), constrain=("none", "adc"), seeds=1, data=(str(place / "few.npz"),), out=place / "runs",
        settings=settings, evaluation={"probe_epochs": "5", "device": "cpu"}, jobs=1,
    )  # fmt: skip
    return place / "runs" / "compare.json"


with tempfile.TemporaryDirectory() as place:
    path = Path(sys.argv[1]) if sys.argv[1:] else tiny(Path(place))
    content = json.loads(path.read_text())

print(f"{content['title']}; base {content['base']!r}, torch {content['versions']['torch']}, {content['machine']}")
values = {(run["data"], run["method"], run["variant"], run["seed"]): run["values"] for run in content["runs"]}
for data, evaluated in content["evaluated"].items():
    for metric in ("linear", "knn5"):
        print(f"{Path(data).name}: {evaluated['protocols'][metric]}, {evaluated['test']} test images")
        for name, by_seed in content["references"][data].items():
            print(f"  {name:14}{mean(100 * row[metric] for row in by_seed.values()):6.2f}")
        for method in content["methods"]:
            base = {s: v[metric] for (d, m, c, s), v in values.items() if (d, m, c) == (data, method, content["base"])}
            print(f"  {method:14}{100 * mean(base.values()):6.2f}")
            for variant in set(content["variants"]) - {content["base"]}:
                gains = [100 * (values[data, method, variant, seed][metric] - base[seed]) for seed in base]
                print(f"    + {variant:10}{mean(gains):+6.2f} over {len(gains)} seeds")
