"""Accuracies and their intervals."""

import numpy as np
import pytest
import torch

from glf.evaluation.context import bootstrap_interval


def test_the_interval_is_that_of_the_bootstrap() -> None:
    random = np.random.default_rng(0)
    hits = random.random(700) < 0.83
    resampled = random.choice(hits, size=(20_000, 700)).mean(1)
    low, high = bootstrap_interval(torch.from_numpy(hits))
    assert (low, high) == pytest.approx(np.quantile(resampled, (0.025, 0.975)), abs=1.5 / 700)  # one hit, rounded
    assert bootstrap_interval(torch.ones(5, dtype=torch.bool)) == (1.0, 1.0)
