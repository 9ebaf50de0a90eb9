"""The preprocessing of an export is that of glf's own images, also for photos that are not square."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glf.data.decode import decode, stored_side
from glf.data.sources import load_images
from glf.exporting.preprocess import Preprocess
from glf.nn.backbone import Backbone


@pytest.mark.parametrize("size", [(200, 60), (61, 160), (90, 90), (133, 100)], ids=str)
def test_the_code_of_the_card_makes_the_square_of_glf(size: tuple[int, int]) -> None:
    pixels = load_images("fashion-mini", "test").pixels[0, :, :, 0]
    photo = Image.fromarray(pixels).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    preprocess = Preprocess.of(Backbone("small_resnet", channels=3, image_size=28), margin=True)
    assert preprocess.resize == stored_side(28)
    scope: dict[str, Any] = {}
    exec(preprocess.code(), scope)
    file = io.BytesIO()
    photo.save(file, "PNG")
    found, own = np.asarray(scope["squared"](photo)), decode(file.getvalue(), side=preprocess.resize)
    assert found.shape == own.shape
    assert np.abs(found.astype(int) - own).max() <= 2
