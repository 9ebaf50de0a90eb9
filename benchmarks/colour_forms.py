"""Do fused colour augmentations cost accuracy? Paired runs with equal weights, batches, crops and colour parameters.

Cost: 2 forms x 5 seeds = 10 runs of 8 epochs over 10,000 images of CIFAR-10, about 5 minutes each with one thread.
Finding: fused minus exact is -0.2 points in k-NN (k = 5) and +0.1 in the linear probe over seven pairs (95 %: ± 1.0 and
± 0.8). Evaluated on 2,000 held-out training images; the test split is not used. Finished runs are not repeated.
Numbers: benchmarks/results/colour_forms.json, discussed in docs/speed.md.

    python benchmarks/colour_forms.py --data cifar10
"""

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glf.config.training import ResolvedPretrainConfig
from glf.data import sources
from glf.data.images import split_held_out
from glf.evaluation.classifiers import linear_probe
from glf.measure.knn import knn_predict
from glf.nn.features import encode
from glf.nn.weights import load_backbone
from glf.result import provenance
from glf.train.run import pretrain

HERE = Path(__file__).parent
OUT = HERE / "results" / "colour_forms.json"
FORMS = ("exact", "fused")


def one(config: ResolvedPretrainConfig) -> dict[str, float]:
    """Train, then evaluate on the held-out training images."""
    pretrain(config)
    assert config.out is not None
    backbone = load_backbone(config.out)
    images = sources.load_images(config.data, "train", size=config.image_size)
    train, val = split_held_out(images, config)
    x, queries = (
        torch.from_numpy(np.concatenate(list(encode(backbone, images, indices=indices, size=backbone.image_size))))
        for indices in (train, val)
    )
    labels, truth = (torch.from_numpy(images.targets[indices]) for indices in (train, val))
    predicted = {
        "knn5": knn_predict(x, labels, queries, 5),
        "linear": linear_probe(x, labels, queries, classes=len(images.classes), epochs=100)[0].argmax(1),
    }
    return {name: round(float((p == truth).double().mean()), 4) for name, p in predicted.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="cifar10", help="as for glf pretrain")
    parser.add_argument("--augment", default="symmetric", help="augmentation policy")
    parser.add_argument("--seeds", type=int, default=5, help="number of pairs")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    for seed, form in product(range(options.seeds), FORMS):
        name = f"{options.augment} {form} {seed}"
        if name in found.get("runs", {}):
            continue
        config = ResolvedPretrainConfig(
            data=options.data,
            method="simclr",
            augment=options.augment,
            colours=form,
            seed=seed,
            epochs=8,
            batch_size=128,
            max_images=12_000,
            val_images=2_000,
            probe_every=8,
            out=HERE.parent / "runs" / "colour_forms" / name.replace(" ", "-"),
            overwrite=True,
        )
        found.setdefault("runs", {})[name] = one(config)
        found |= {"command": "python benchmarks/colour_forms.py", **provenance()}
        found["differences"] = differences(found["runs"])
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["differences"], indent=1))


def differences(runs: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Fused minus exact in points, paired by seed: mean, standard deviation and number of pairs."""
    out: dict[str, dict[str, float]] = {}
    for policy in sorted({name.split()[0] for name in runs}):
        seeds = [
            int(n.split()[2]) for n in runs if n.startswith(f"{policy} fused") and n.replace("fused", "exact") in runs
        ]
        for key in ("knn5", "linear"):
            pairs = [[100 * runs[f"{policy} {form} {seed}"][key] for form in ("fused", "exact")] for seed in seeds]
            deltas = [fused - exact for fused, exact in pairs]
            if deltas:
                spread = statistics.stdev(deltas) if len(deltas) > 1 else 0.0
                row = {"mean": statistics.mean(deltas), "sd": spread, "pairs": len(deltas)}
                row["exact"] = statistics.mean(exact for _, exact in pairs)
                out[f"{policy} {key}"] = {k: round(v, 2) for k, v in row.items()}
    return out


if __name__ == "__main__":
    main()
