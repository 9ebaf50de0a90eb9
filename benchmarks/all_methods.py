"""Train every method on 5,000 images: does it learn more than raw pixels and the untrained network know?

Cost: 10 epochs of the small ResNet per run, about 4 minutes each with one thread, two at a time: the ten most used
methods with three seeds, the others with one, about two hours on two cores. Stored runs are not repeated, so the
command can be stopped and started again. The hyperparameters are those of the tiny recipe, chosen on held-out training
images. Results go into benchmarks/results/all_methods.json and benchmarks/RESULTS.md.

    make methods IMAGES=cifar10.tar
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from glf.comparison.conduct import conduct
from glf.comparison.study import Study
from glf.constrain.target_distribution import TARGET_DISTRIBUTIONS
from glf.measure.intervals import t_interval
from glf.methods import METHODS
from glf.result import write_file

HERE = Path(__file__).parent
RUNS = Path("runs") / "all_methods"
OUT = HERE / "results" / "all_methods.json"
# Those that other libraries train most: three seeds.
MOST_USED = (
    "simclr", "moco", "byol", "simsiam", "barlow_twins", "vicreg", "swav", "dino", "nnclr", "supcon",
)  # fmt: skip
SPECS = [*METHODS, *(f"align+{name}" for name in TARGET_DISTRIBUTIONS)]
REFERENCES = ("pixels", "untrained")
# Those whose target is a prior: raw pixels would make them learn what pixels know.
OF_A_PRIOR = ("xsample", "distil")
PRIOR = {"prior": "timm:tf_efficientnet_lite0", "prior_size": 96}
METRICS = ("knn5", "linear", "rank", "spread")
TRAIN, VAL = 5_000, 500
OWN_MOMENTS = (
    "the target has the mean and covariance of the batch, so a single point matches it: it does not prevent collapse"
)
WHY = {
    "align": "without a constraint it collapses, as in Figure 1 of the paper",
    "align+gaussian": OWN_MOMENTS,
    "align+mixture": "it does not collapse, and is level with raw pixels after ten epochs",
}


def studies(images: str) -> list[Study]:
    """The most used methods with three seeds, then the others with one, the last of them with a prior."""
    first = tuple(name for name in MOST_USED if name in METHODS)
    study = Study(
        title="The most used methods on 5,000 images",
        methods=first,
        data=(images,),
        seeds=3,
        base="alone",
        variants={"alone": {}},
        settings={"recipe": "tiny", "max_images": TRAIN + VAL, "val_images": VAL},
        evaluation={"max_images": TRAIN + VAL, "suite": ["knn", "linear", "geometry"]},
    )
    others = tuple(name for name in SPECS if name not in {*first, *OF_A_PRIOR})
    single = replace(study, title="The other methods on 5,000 images", methods=others, seeds=1)
    with_prior = {"methods": OF_A_PRIOR, "settings": {**study.settings, **PRIOR}}
    return [study, single, replace(single, title="Methods that follow a prior, on 5,000 images", **with_prior)]


def rows(content: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Measured values by encoder, one entry per seed."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in content["runs"]:
        for name, values in {**run["references"], run["method"]: run["values"]}.items():
            found.setdefault(name, []).append(values)
    return found


def cell(values: list[dict[str, float]], metric: str, digits: int, unit: float = 1.0) -> str:
    """Mean over seeds, with half of the 95 % t-interval where there are three."""
    numbers = [unit * value[metric] for value in values]
    text = f"{mean(numbers):.{digits}f}"
    return f"{text} ± {t_interval(numbers)[2] - mean(numbers):.{digits}f}" if len(numbers) > 2 else text


def page(content: dict[str, Any]) -> str:
    """The table in Markdown: each method against raw pixels and the untrained network."""
    measured = rows(content)
    machines = sorted({f"{run['machine']['processor']}, {run['machine']['cores']} cores" for run in content["runs"]})
    versions = sorted({run["versions"]["torch"] for run in content["runs"]})
    reference = max(mean(row["knn5"] for row in measured[name]) for name in REFERENCES)
    lines = [
        "## Every method, on 5,000 images",
        "",
        f"Written by `{content['command']}`: {TRAIN:,} training images of CIFAR-10,",
        f"the `tiny` recipe (10 epochs of the small ResNet), evaluated on {content['runs'][0]['test']:,} test images.",
        f"{'; '.join(machines)}; torch {', '.join(versions)}.",
        "",
        "The recipe was chosen on held-out training images. The weights of the five target distributions follow from",
        "their fractions of the gradient. They were set after a first run of this table: with too little weight two of",
        "them collapse, and with too much one learns nothing else.",
        "",
        "Accuracies are in per cent; effective rank and spread are those of the test images' features (spread 1:",
        "uniform, 0: a single point). ± is half of the 95 % t-interval over three seeds; without it, one seed. Ten",
        "epochs with one recipe for all: this shows that a method trains, not which one is best. xsample and distil",
        "follow a frozen ImageNet encoder.",
        "",
        "| | k-NN (k = 5) | linear | effective rank | spread | k-NN (k = 5) above pixels and untrained |",
        "|---|---:|---:|---:|---:|---|",
    ]
    below = []
    for name in (*REFERENCES, *SPECS):
        if name not in measured:
            lines.append(f"| {name} | not run yet | | | | |")
            continue
        values, above = measured[name], ""
        if name in SPECS:
            is_above = mean(value["knn5"] for value in values) > reference
            above = "yes" if is_above else "**no**"
            below += [] if is_above else [name]
        cells = [cell(values, "knn5", 1, 100), cell(values, "linear", 1, 100)]
        cells += [cell(values, "rank", 1), cell(values, "spread", 2)]
        lines.append(f"| {name} | {' | '.join([*cells, above])} |")
    lines += ["", *(f"- {name}: {WHY.get(name, 'not understood yet')}." for name in below)] if below else []
    return "\n".join(lines) + "\n"


def stored() -> dict[str, Any]:
    """The stored runs of both studies, and the command that made them."""
    empty: dict[str, Any] = {"command": "", "runs": []}
    content: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else empty
    return content


def store(command: str, content: dict[str, Any]) -> None:
    """Add the runs of one study to what is stored."""
    made = {run["key"]: run for run in [*stored()["runs"], *content["runs"]]}
    write_file(OUT, json.dumps({"command": command, "runs": list(made.values())}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", required=True, help="CIFAR-10: a .tar or folder with train and test")
    parser.add_argument("--jobs", type=int, help="simultaneous runs")
    options = parser.parse_args()
    command = f"python benchmarks/all_methods.py --images {Path(options.images).name}"
    for number, study in enumerate(studies(options.images)):
        known = {run["key"]: run for run in stored()["runs"]}
        conduct(study, RUNS / str(number), options.jobs, known=known, store=lambda found: store(command, found))
    import pages  # it imports this module

    pages.write()
    print(page(stored()))


if __name__ == "__main__":
    main()
