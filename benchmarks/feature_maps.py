"""t-SNE of the test images' features: the four methods of the headline study, without and with ADC.

Cost: a minute; it reads the runs of seed 0 of the headline study. t-SNE shows neighbourhoods, not distances, sizes or
densities, and looks better than the accuracies are.

    python benchmarks/feature_maps.py
"""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
import matplotlib.pyplot as plt
import pages
from sklearn.manifold import TSNE

from glf.data import sources
from glf.nn.features import encode
from glf.nn.weights import load_backbone
from glf.rundir import read_config

RUNS = Path("runs") / "headline"
VARIANTS = ("none", "adc")
IMAGES = 1_500


def projection(run: Path) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Two coordinates and the class of a sample of the test images."""
    images = sources.load_images(read_config(run).data, "test")
    sample = np.sort(np.random.default_rng(0).permutation(len(images))[:IMAGES])
    backbone = load_backbone(run)
    features = np.concatenate(list(encode(backbone, images, indices=sample, size=backbone.image_size)))
    return TSNE(init="pca", random_state=0).fit_transform(features), images.targets[sample], images.classes


def main() -> None:
    (runs,) = (path for path in RUNS.iterdir() if path.is_dir())
    methods = [path.name for path in sorted(runs.iterdir()) if path.is_dir()]
    size = (2.4 * len(methods), 2.5 * len(VARIANTS) + 0.4)
    figure, panels = plt.subplots(len(VARIANTS), len(methods), figsize=size, squeeze=False)
    for row, variant in zip(panels, VARIANTS, strict=True):
        for panel, method in zip(row, methods, strict=True):
            points, labels, classes = projection(runs / method / variant / "0")
            for label, name in enumerate(classes):
                panel.scatter(*points[labels == label].T, s=2, color=plt.cm.tab10(label), label=name, rasterized=True)
            panel.set_title(method if variant == "none" else f"{method} + {variant}", fontsize=9)
            panel.set_xticks([])
            panel.set_yticks([])
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncol=10, fontsize=7, markerscale=4)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(pages.MAPS, metadata={"Date": None}, dpi=110)
    pages.write()


if __name__ == "__main__":
    main()
