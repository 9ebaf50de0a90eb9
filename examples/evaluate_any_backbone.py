"""Evaluating backbones that glf has not trained: a timm model with your weights, and any PyTorch module.

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
from glf import effective_rank, load_images, weighted_knn_predict

train, test = load_images("fashion-mini", "train"), load_images("fashion-mini", "test")
torch.manual_seed(0)

with tempfile.TemporaryDirectory() as place:
    # Your data set (here arrays; a folder works too), and the weights of a timm model.
    data, weights = Path(place, "mine.npz"), Path(place, "mine.safetensors")
    arrays = {"train_images": train.pixels[:1000], "train_labels": train.targets[:1000]}
    np.savez(data, test_images=test.pixels[:300], test_labels=test.targets[:300], **arrays)
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), weights)

    found = glf.evaluate(
        run="timm:test_resnet", weights=weights, image_size=32, data=str(data), out=Path(place, "evaluation"),
        suite=("knn", "geometry"), device="cpu",
    )  # fmt: skip
    for column, row in found["rows"].items():
        print(column, {name: round(value, 3) for name, value in row.items()})

# Any other module: the measures only need its features of your images.
mine = nn.Sequential(nn.Conv2d(1, 16, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten()).eval()


@torch.no_grad()
def features(pixels: np.ndarray) -> torch.Tensor:
    return mine(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)


bank, queries = features(train.pixels[:1000]), features(test.pixels[:300])
labels, truth = torch.from_numpy(train.targets[:1000]), torch.from_numpy(test.targets[:300])
accuracy = (weighted_knn_predict(bank, labels, queries) == truth).float().mean()
print(f"mine: weighted k-NN {accuracy:.3f}, effective rank {effective_rank(bank):.2f}")
