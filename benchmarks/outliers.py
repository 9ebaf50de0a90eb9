"""Foreign images in the training data: do the weights 1/H(P_pre) detect them and reduce their effect?

A sixth of the training images is foreign: ``cluster`` has images of Fashion-MNIST, similar to each other; ``scattered``
has images of CIFAR-10 with shuffled pixels, similar to nothing. Both are written to runs/outliers as .npz files without
labels; the evaluation uses CIFAR-10 itself. ``adc`` uses the weights, ``dcm+lpm`` does not. They apply to DCM, at three
times its default weight, because its effect would be too small to measure otherwise. The headline study has the results
of raw pixels and of the untrained network.

Cost: 2 data sets x 2 variants x 3 seeds = 12 runs of about 3 minutes with one thread, two at a time: 20 minutes.

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
from glf.config.training import PretrainConfig
from glf.constrain.adc import outlier_weight
from glf.constrain.adc.neighbours import NeighbourDistributions, entropy
from glf.data import sources
from glf.nn.prior import prior_features
from glf.reporting.study_tables import markdown_table
from glf.types import Embeddings

OUT = Path("runs") / "outliers"
ALSO = "The prior's neighbour distributions of native and foreign images"
NATIVE, FOREIGN, BATCH = 10_000, 2_000, 128
FINDING = (
    "The weights do not detect foreign images, and have no significant effect. Images of Fashion-MNIST are near"
    " neighbours of each other, so their neighbour distributions are sharper than those of native images (1.4 nats"
    " against 2.6), and their anchors get twice the weight (1.77 against 0.85). Images with shuffled pixels have"
    " neighbour distributions nearly as flat as native ones. At three times the default weight of DCM, runs with and"
    " without the weights end within a quarter of a point of each other (not significant)."
)


def clustered(others: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Fashion-MNIST at 32 px with three equal channels."""
    grey = sources.load_images("fashion-mini", "train").pixels[:FOREIGN]
    return np.repeat(np.pad(grey, ((0, 0), (2, 2), (2, 2), (0, 0))), 3, axis=-1)


def scattered(others: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Other images of the same data set, each with its pixels shuffled."""
    return np.stack([generator.permutation(image.reshape(-1, 3)).reshape(image.shape) for image in others])


KINDS = {"cluster": clustered, "scattered": scattered}


def mixed(images: str, kind: str) -> Path:
    """Write native and foreign images into one file, the foreign ones last; return its path."""
    path = OUT / f"{kind}.npz"
    if not path.exists():
        generator = np.random.default_rng(0)
        pixels = sources.load_images(images, "train").pixels
        order = generator.permutation(len(pixels))
        native, others = (pixels[np.sort(indices)] for indices in (order[:NATIVE], order[NATIVE : NATIVE + FOREIGN]))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, train_images=np.concatenate([native, KINDS[kind](others, generator)]))
    return path


def prior_statistics(path: Path) -> dict[str, float]:
    """Entropies of the prior's neighbour distributions and weights of the anchors, over random batches."""
    images = sources.load_images(str(path), "train")
    prior = torch.from_numpy(np.array(prior_features(PretrainConfig(prior=PRIOR, prior_size=SIZE), images)))
    order = torch.randperm(len(prior), generator=torch.Generator().manual_seed(0))[: len(prior) // BATCH * BATCH]
    entropies, weights = [], []
    for batch in order.split(BATCH):
        log_pre = NeighbourDistributions().log_pre(Embeddings(z=torch.zeros(2, BATCH, 2), prior=prior[batch]))
        entropies.append(entropy(log_pre))
        weights.append(outlier_weight(entropies[-1]))
    flatness, weight, foreign = torch.cat(entropies), torch.cat(weights), order >= NATIVE
    return {
        "auc": float(roc_auc_score(foreign, flatness)),  # 1: every foreign image has a higher entropy; 0.5: chance
        "entropy_native": float(flatness[~foreign].mean()),
        "entropy_foreign": float(flatness[foreign].mean()),
        "weight_native": float(weight[~foreign].mean()),
        "weight_foreign": float(weight[foreign].mean()),
    }


def table(statistics: dict[str, dict[str, float]]) -> list[list[str]]:
    """The statistics as rows of a table."""
    head = ["foreign images", "higher entropy than native", "entropy, native", "foreign", "weight, native", "foreign"]
    rows = [
        [kind, f"{100 * one['auc']:.0f} %", *(f"{one[key]:.2f}" for key in list(one)[1:])]
        for kind, one in statistics.items()
    ]
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
        evaluation={"data": images, "max_images": NATIVE, "suite": ["knn", "linear", "geometry"]},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", required=True, help="CIFAR-10: a .tar or folder with train and test")
    parser.add_argument("--jobs", type=int, help="simultaneous runs; default: as many as cores and memory allow")
    options = parser.parse_args()
    paths = {kind: mixed(options.images, kind) for kind in KINDS}
    rows = table({kind: prior_statistics(path) for kind, path in paths.items()})
    print("\n".join(markdown_table(rows)))
    command = f"python benchmarks/outliers.py --images {options.images}"

    def store(content: dict[str, Any]) -> None:
        pages.store("outliers", {**content, "finding": FINDING, "also": [ALSO, rows], "command": command})

    asked = study(options.images, tuple(str(path) for path in paths.values()))
    conduct(asked, OUT, options.jobs, known=pages.known_runs(), store=store, references=False)
    pages.write()


if __name__ == "__main__":
    main()
