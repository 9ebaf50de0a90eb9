"""How much the distributions that ADC compares know about classes: logged before training and after epochs.

For each of ``cal``, ``dat`` and ``pre``: the probability that it gives to images of the anchor's own class, on held-out
images with labels. A target that knows no more than ``dat``, which is moved towards it, cannot help.
"""

from typing import Any

import numpy as np
import torch

from glf.constrain.adc import DCM, LPM
from glf.data.images import ImageSet
from glf.train.module import Pretraining

IMAGES = 1_024  # at most; in batches like those of training


class ClassMass:
    """Measures val/mass/cal, val/mass/dat, val/mass/pre, and val/mass/chance for comparison."""

    def __init__(self, images: ImageSet, rows: np.ndarray, prior: np.ndarray | None) -> None:
        # Rows of the data set are in the order of the classes: take them from all.
        self.rows = np.random.default_rng(0).permutation(rows)[:IMAGES]
        self.images, self.prior = images, prior

    @torch.no_grad()
    def measure(self, module: Pretraining) -> dict[str, float]:
        """Mean masses over the batches of the held-out images; {} if no term compares neighbours."""
        terms = [term for term in module.objective.modules() if isinstance(term, DCM | LPM)]
        terms = [term for term in terms if "prior" not in term.needs or self.prior is not None]
        size = min(module.config.batch_size, len(self.rows))
        if not terms or size < 2:
            return {}
        labels = torch.from_numpy(self.images.targets).to(module.device)
        masses: dict[str, list[float]] = {}
        training = module.training
        module.eval()
        for start in range(0, len(self.rows) - size + 1, size):
            rows = np.sort(self.rows[start : start + size])
            e = module.held_out_embeddings(self.images, rows, None if self.prior is None else self.prior[rows])
            found: dict[str, Any] = {k: v for term in terms for k, v in term.class_masses(e, labels).items()}
            of_batch = labels[torch.from_numpy(rows).to(labels.device)]
            counts = of_batch.bincount(minlength=1).double()
            found["chance"] = (counts * (counts - 1)).sum() / (size * (size - 1))
            for name, value in found.items():
                masses.setdefault(f"val/mass/{name}", []).append(float(value))
        module.train(training)
        return {name: round(float(np.mean(values)), 4) for name, values in sorted(masses.items())}
