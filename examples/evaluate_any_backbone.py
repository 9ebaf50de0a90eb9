"""Judging a backbone that glf has not trained: a timm model with your weights, and any torch module of your own.

Run: python examples/evaluate_any_backbone.py
"""

import tempfile
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import glf
from glf.data.sources import load
from glf.measure.geometry import effective_rank, spread
from glf.measure.neighbours import nearest_neighbours

train, test = load("fashion-mini", "train"), load("fashion-mini", "test")
torch.manual_seed(0)

with tempfile.TemporaryDirectory() as place:
    # What you have: a data set (here arrays; a folder does as well) and weights of a model that timm knows.
    data, weights = Path(place, "mine.npz"), Path(place, "mine.safetensors")
    arrays = {"train_images": train.pixels[:1000], "train_labels": train.targets[:1000]}
    np.savez(data, test_images=test.pixels[:300], test_labels=test.targets[:300], **arrays)
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), weights)

    found = glf.evaluate(
        run="timm:test_resnet", weights=weights, image_size=32, data=str(data), out=Path(place, "judged"),
        suite=("knn", "geometry"), device="cpu",
    )  # fmt: skip
    for column, row in found["rows"].items():
        print(column, {name: round(value, 3) for name, value in row.items()})

# Any other module: its features of your images are all that the measures ask for.
mine = nn.Sequential(nn.Conv2d(1, 16, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()).eval()


@torch.no_grad()
def features(pixels: np.ndarray) -> torch.Tensor:
    return mine(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)


bank, queries = features(train.pixels[:1000]), features(test.pixels[:300])
labels, truth = torch.from_numpy(train.targets[:1000]), torch.from_numpy(test.targets[:300])
right = (nearest_neighbours(bank, labels, queries, 5) == truth).float().mean()
print(f"mine: 5-nn {right:.3f}, effective rank {effective_rank(bank):.2f}, spread {spread(bank):.3f}")
