"""Foreign images in the training data: do the weights 1/H(P_pre) find them, and do they defuse them?

A sixth of the training images is foreign: ``cluster`` are Fashion-MNIST's, all of a kind; ``scattered`` are CIFAR-10's
own with their pixels shuffled, each alone in its corner. Written to runs/outliers as .npz files without labels; what is
judged is CIFAR-10 as it is. ``adc`` carries the weights, ``dcm+lpm`` does not; DCM, which they weigh, has thrice its
default weight: else nothing could be seen. What pixels and the untrained network reach stands in the headline's table.

Cost: 2 sets x 2 variants x 3 seeds = 12 runs of some 3 minutes with one thread, two at a time: 20 minutes.

    python benchmarks/outliers.py --images cifar10.tar
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pages
import torch
from prior_alone import PRIOR, SIZE
from sklearn.metrics import roc_auc_score

from glf.comparison.conduct import conduct
from glf.comparison.study import Study
from glf.constrain.adc import kernels
from glf.constrain.adc.equations import outlier_weight
from glf.constrain.adc.neighbours import NeighbourDistributions
from glf.data import sources
from glf.data.image_cache import cache_root
from glf.nn.prior import prior_rows
from glf.reporting.study_tables import lines
from glf.types import Embeddings

OUT = Path("runs") / "outliers"
NATIVE, FOREIGN, BATCH = 10_000, 2_000, 128
FINDING = (
    "The weights do not find foreign images, and nothing shows that they matter. Fashion-MNIST's are each other's"
    " near neighbours, so their rows are sharper than native ones (1.4 nats against 2.6), and their anchors weigh"
    " twice as much (1.77 against 0.85). Images with shuffled pixels have rows nearly as flat as native ones. At"
    " thrice the default weight of DCM, runs with the weights and without them end within a quarter of a point of"
    " each other, which is not shown."
)


def of_a_kind(others: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Fashion-MNIST at 32 px, in three equal channels."""
    grey = sources.load("fashion-mini", "train").pixels[:FOREIGN]
    return np.repeat(np.pad(grey, ((0, 0), (2, 2), (2, 2), (0, 0))), 3, axis=-1)


def scattered(others: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Other images of the same set with their pixels shuffled, each in its own way: its colours, no picture."""
    return np.stack([generator.permutation(image.reshape(-1, 3)).reshape(image.shape) for image in others])


KINDS = {"cluster": of_a_kind, "scattered": scattered}


def mixed(images: str, kind: str) -> Path:
    """Native images with foreign ones among them, in one file; the foreign come last."""
    path = OUT / f"{kind}.npz"
    if not path.exists():
        generator = np.random.default_rng(0)
        pixels = sources.load(images, "train").pixels
        order = generator.permutation(len(pixels))
        native, others = (pixels[np.sort(rows)] for rows in (order[:NATIVE], order[NATIVE : NATIVE + FOREIGN]))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, train_images=np.concatenate([native, KINDS[kind](others, generator)]))
    return path


def found(path: Path) -> dict[str, float]:
    """Over batches as training draws them: are foreign images' rows flatter, and what do their anchors weigh?"""
    images = sources.load(str(path), "train")
    prior = torch.from_numpy(np.array(prior_rows(PRIOR, images, cache=cache_root() / "prior", size=SIZE)))
    order = torch.randperm(len(prior), generator=torch.Generator().manual_seed(0))[: len(prior) // BATCH * BATCH]
    entropies, weights = [], []
    for batch in order.split(BATCH):
        rows = NeighbourDistributions().pre(Embeddings(z=torch.zeros(2, BATCH, 2), prior=prior[batch]))
        entropies.append(kernels.entropy(rows))
        weights.append(outlier_weight(entropies[-1]))
    entropy, weight, foreign = torch.cat(entropies), torch.cat(weights), order >= NATIVE
    return {
        "auc": float(roc_auc_score(foreign, entropy)),  # 1: every foreign row is flatter; 0.5: no telling
        "entropy_native": float(entropy[~foreign].mean()),
        "entropy_foreign": float(entropy[foreign].mean()),
        "weight_native": float(weight[~foreign].mean()),
        "weight_foreign": float(weight[foreign].mean()),
    }


def rows_of(told: dict[str, dict[str, float]]) -> list[list[str]]:
    """As a table."""
    head = ["foreign images", "flatter than a native one", "entropy, native", "foreign", "weight, native", "foreign"]
    rows = [[kind, f"{100 * f['auc']:.0f} %", *(f"{f[key]:.2f}" for key in list(f)[1:])] for kind, f in told.items()]
    return [head, *rows]


def study(images: str, data: tuple[str, ...]) -> Study:
    return Study(
        title="Foreign images among the training images",
        methods=("simclr",),
        data=data,
        seeds=3,
        base="dcm+lpm",
        variants={name: {"constrain": name, "nu": 1.0} for name in ("dcm+lpm", "adc")},
        settings={"recipe": "tiny", "epochs": 4, "val_images": 0, "prior": PRIOR, "prior_size": SIZE},
        evaluation={"data": images, "max_images": NATIVE},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", required=True, help="CIFAR-10: a tar or folder with train and test")
    parser.add_argument("--jobs", type=int, help="runs at once; as many as the machine bears when not given")
    options = parser.parse_args()
    paths = {kind: mixed(options.images, kind) for kind in KINDS}
    told = {kind: found(path) for kind, path in paths.items()}
    also = ["The prior's rows of native and foreign images", rows_of(told)]
    print("\n".join(lines(rows_of(told))))
    command = f"python benchmarks/outliers.py --images {options.images}"

    def keep(content: dict[str, Any]) -> None:
        pages.store("outliers", {**content, "finding": FINDING, "also": also, "command": command})

    asked = study(options.images, tuple(str(path) for path in paths.values()))
    conduct(asked, OUT, options.jobs, known=pages.known_runs(), keep=keep, references=False)
    pages.write()


if __name__ == "__main__":
    main()
