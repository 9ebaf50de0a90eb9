"""Evaluate the prior of the studies itself, in the same way as their runs.

It shows how much better than its students the prior is. Written to benchmarks/results/prior.json, and shown as (prior)
in every table of a study that uses it.

Studies of 10,000 images draw a sample by their seed; those of all images share one row, which has few labels, too.

Cost: one pass of the prior over all images, six minutes on two cores; features cached by a study are reused.

    python benchmarks/prior_alone.py --images cifar10.tar
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pages
import torch

from glf.config.evaluation import EvaluateConfig
from glf.data import sources
from glf.data.image_cache import cache_root
from glf.data.images import stratified_sample
from glf.evaluation.classifiers import linear_probe
from glf.evaluation.probes import hits
from glf.evaluation.suite import evaluate
from glf.measure.knn import knn_predict
from glf.nn.features import extract
from glf.nn.pretrained import pretrained
from glf.result import provenance, write_file

RUNS = Path("runs")
PRIOR, SIZE = "timm:tf_efficientnet_lite0", 96
MAX_IMAGES, SEEDS = 10_000, 5  # as in the studies: labelled images, drawn by the seed of the run


def accuracies(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """The linear probe and k-NN (k = 5) of the studies."""
    x, y, z, t = (torch.from_numpy(np.ascontiguousarray(part)) for part in (train, labels, test, truth))
    predicted = {
        "knn5": knn_predict(x, y, z, 5),
        "linear": linear_probe(x, y, z, classes=int(y.max()) + 1)[0].argmax(1),
    }
    return {name: round(float(hits(found, t).double().mean()), 4) for name, found in predicted.items()}


def evaluate_prior(images: str) -> dict[str, dict[str, float]]:
    """Accuracies by seed, as in the references of a study."""
    encoder = pretrained(PRIOR, size=SIZE)
    splits = {name: sources.load_images(images, name) for name in ("train", "test")}
    features = {
        name: extract(
            encoder, part, cache=cache_root() / "prior", size=encoder.image_size, batch_size=256, label="prior"
        )
        for name, part in splits.items()
    }
    found = {}
    for seed in range(SEEDS):
        seen = stratified_sample(splits["train"].targets, MAX_IMAGES, seed)
        found[str(seed)] = accuracies(
            features["train"][seen], splits["train"].targets[seen], features["test"], splits["test"].targets
        )
        print(f"seed {seed}: {found[str(seed)]}", flush=True)
    return found


def evaluate_on_all(images: str) -> tuple[int, dict[str, float]]:
    """The number of training images and the accuracies with all of them, by `glf evaluate`."""
    config = EvaluateConfig(
        run=Path(PRIOR),
        data=images,
        image_size=SIZE,
        suite=("knn", "linear", "fewshot"),
        references=False,
        artifacts=False,
        out=RUNS / "prior-alone",
    )
    found = evaluate(config)
    return found["train"], found["rows"]["trained"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", required=True, help="as for glf pretrain")
    options = parser.parse_args()
    count, row = evaluate_on_all(options.images)
    content: dict[str, Any] = {
        "prior": PRIOR,
        "prior_size": SIZE,
        "data": options.images,
        "rows": {MAX_IMAGES: evaluate_prior(options.images), count: {"0": row}},
        **provenance(),
        "command": f"python benchmarks/prior_alone.py --images {options.images}",
    }
    write_file(pages.PRIOR, json.dumps(content, indent=1) + "\n")
    pages.write()


if __name__ == "__main__":
    main()
