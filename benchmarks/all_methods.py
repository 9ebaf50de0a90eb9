"""Every row of the table of methods on 5,000 images: does it train, does it beat pixels and the untrained network?

Cost: one run per row, 10 epochs of the small ResNet, about 4 minutes each with one thread, two at a time: some 55
minutes on two cores. What is done is not done again. One seed: this says that a method works, not which one is best.
Settings are those of the tiny recipe, chosen on held-out training images. Results go into
benchmarks/results/all_methods.json and benchmarks/RESULTS.md.

    make methods IMAGES=cifar10.tar
"""

import argparse
import json
from pathlib import Path
from typing import Any

from glf.comparison.conduct import conduct
from glf.comparison.study import Study
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS
from glf.methods import METHODS

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs" / "all_methods"
OUT = HERE / "results" / "all_methods.json"
SPECS = [*METHODS, *(f"align+{law}" for law in TARGET_DISTRIBUTIONS)]
TRAIN, VAL = 5_000, 500
REFERENCES = ("pixels", "untrained")
OWN = "the law has the batch's own mean and covariance, and a point is such a law too: it forbids no collapse"
WHY = {
    "align": "nothing constrains it, so it collapses, as the paper's Figure 1 says it must",
    "align+gaussian": OWN,
    "align+mixture": OWN,
}


def collected(found: dict[str, Any], data: str) -> dict[str, Any]:
    """What the page shows, of what compare.json holds."""
    (references,) = found["references"].values()
    rows = {name: references[name]["0"] for name in REFERENCES}
    rows |= {run["method"]: run["values"] for run in found["runs"]}
    command = f"python benchmarks/all_methods.py --images {Path(data).name}"
    (judged,) = found["evaluated"].values()
    about = {"machine": found["machine"], "versions": found["versions"], "test": judged["test"]}
    failed = {Path(place).parent.parent.name: why for place, why in found["failed"].items()}
    return {"command": command, "train": TRAIN, "seed": 0, **about, "rows": rows, "failed": failed}


def page(content: dict[str, Any]) -> str:
    """The table, every row against pixels and the untrained network."""
    rows, (machine, versions) = content["rows"], (content["machine"], content["versions"])
    reference = max(rows[name]["knn5"] for name in REFERENCES)
    lines = [
        "## Every method, on 5,000 images",
        "",
        f"Written by `{content['command']}`: {content['train']:,} training images of CIFAR-10,",
        f"the `tiny` recipe (10 epochs of the small ResNet), seed {content['seed']}, judged on {content['test']:,}",
        f"test images. {machine['processor']}, {machine['cores']} cores, torch {versions['torch']}.",
        "",
        "The recipe was chosen on held-out training images. The weights of the five laws follow from their shares of",
        "the gradient; they were set when a first run of this table had shown that with too little weight two of them",
        "collapse, and with too much one learns nothing else.",
        "",
        "Accuracies are in per cent; effective rank and spread are of the test images' features (spread 1: a uniform",
        "cloud, 0: a point). One seed, ten epochs: this says that a method trains, not which one is better.",
        "",
        "| | 5-nn | linear | effective rank | spread | 5-nn above pixels and untrained |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, row in rows.items():
        above = "" if name in REFERENCES else "yes" if row["knn5"] > reference else "**no**"
        cells = [f"{100 * row['knn5']:.1f}", f"{100 * row['linear']:.1f}", f"{row['rank']:.1f}", f"{row['spread']:.2f}"]
        lines.append(f"| {name} | {' | '.join([*cells, above])} |")
    below = [name for name, row in rows.items() if name not in REFERENCES and row["knn5"] <= reference]
    reasons = {**{name: WHY.get(name, "not understood yet") for name in below}, **content["failed"]}
    lines += ["", *(f"- {name}: {why}." for name, why in reasons.items())] if reasons else []
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", required=True, help="CIFAR-10: a tar or folder with train and test")
    parser.add_argument("--jobs", type=int, help="runs at once")
    options = parser.parse_args()
    study = Study(
        title="Every method on 5,000 images",
        methods=tuple(SPECS),
        data=(options.images,),
        seeds=1,
        base="alone",
        variants={"alone": {}},
        settings={"recipe": "tiny", "max_images": TRAIN + VAL, "val_images": VAL},
        evaluation={"max_images": TRAIN + VAL},
    )
    content = collected(conduct(study, RUNS, options.jobs), options.images)
    OUT.write_text(json.dumps(content, indent=1) + "\n")
    import pages  # it reads this file

    pages.write()
    print(page(content))


if __name__ == "__main__":
    main()
