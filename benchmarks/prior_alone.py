"""Evaluate the prior of the studies itself, in the same way as their runs.

It shows how much better than its students the prior is. Written to benchmarks/results/prior.json, and shown as (prior)
in every table of a study that uses it.

Cost: one pass of the prior over all images, twelve minutes on two cores; features cached by a study are reused.

    python benchmarks/prior_alone.py --images cifar10.tar
"""

import argparse
import json
from typing import Any

import numpy as np
import pages
import torch

from glf.data import sources
from glf.data.image_cache import cache_root
from glf.data.images import stratified_sample
from glf.evaluation.classifiers import linear_probe
from glf.evaluation.probes import hits
from glf.measure.knn import knn_predict
from glf.nn.features import extract
from glf.nn.pretrained import pretrained
from glf.result import provenance, write_file

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", required=True, help="as for glf pretrain")
    options = parser.parse_args()
    content: dict[str, Any] = {
        "prior": PRIOR,
        "prior_size": SIZE,
        "max_images": MAX_IMAGES,
        "data": options.images,
        "rows": evaluate_prior(options.images),
        **provenance(),
        "command": f"python benchmarks/prior_alone.py --images {options.images}",
    }
    write_file(pages.PRIOR, json.dumps(content, indent=1) + "\n")
    pages.write()


if __name__ == "__main__":
    main()
