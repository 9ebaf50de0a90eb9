"""A context of real pixels for the protocols."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from torch import nn

from glf.config.evaluation import EvaluateConfig
from glf.config.training import ResolvedPretrainConfig
from glf.data.sources import load_images
from glf.evaluation.context import EvalContext, EvalTarget
from glf.nn.backbone import Backbone


@pytest.fixture
def pixels(tmp_path: Path, console: Console) -> Callable[..., EvalContext]:
    """Make a context of real pixels with 2,000 training and 500 test images; a fraction of the labels is random."""
    images = load_images("fashion-mini")

    def make(random_labels: float = 0.0, **settings: Any) -> EvalContext:
        train, random = images.select(np.arange(2000)), np.random.default_rng(0)
        targets = np.where(random.random(2000) < random_labels, random.integers(0, 10, 2000), train.targets)
        target = EvalTarget(
            name="pixels",
            backbone=Backbone("small_resnet", channels=1, image_size=28),
            pretraining=ResolvedPretrainConfig(),
            train=replace(train, targets=targets),
            test=images.select(np.arange(2000, 2500)),
            split="test",
        )
        return EvalContext(
            name="pixels",
            encoder=nn.Sequential(nn.AvgPool2d(2), nn.Flatten()),
            target=target,
            device="cpu",
            config=EvaluateConfig(run=Path(), **settings),
            out=tmp_path,
            console=console,
        )

    return make
