"""Preprocessing of input images, stored with every exported backbone."""

import math
from dataclasses import dataclass
from typing import Any

from glf.data.decode import stored_side
from glf.nn.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Make a square of side ``resize``, crop its central ``size``, scale to [0, 1], normalise.

    An image that is not square is cropped half way and then squeezed, as glf's own images are (data/decode.py).
    """

    size: int
    resize: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"

    @classmethod
    def of(cls, backbone: Backbone, *, margin: bool) -> "Preprocess":
        """The preprocessing of the training images, which were stored with or without a margin around the crop."""
        return cls(
            size=backbone.image_size,
            resize=stored_side(backbone.image_size) if margin else backbone.image_size,
            channels=backbone.channels,
            mean=tuple(round(value, 6) for value in backbone.mean.flatten().tolist()),
            std=tuple(round(value, 6) for value in backbone.std.flatten().tolist()),
        )

    def metadata(self) -> dict[str, Any]:
        """The preprocessing with self-explanatory names."""
        return {
            "input": f"(batch, {self.channels}, {self.size}, {self.size}), {'RGB' if self.channels == 3 else 'grey'}",
            "crop_long_side": "to the geometric mean of both sides, centred",
            "resize_to_square": self.resize,
            "centre_crop": self.size,
            "interpolation": f"{self.interpolation}, antialiased",
            "values": "0 to 1",
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def code(self) -> str:
        """Python code that makes the square; timm's and torchvision's own transforms only crop."""
        return "\n".join(
            [
                "from PIL import Image",
                "",
                "",
                "def squared(image):",
                "    mean = (image.width * image.height) ** 0.5",
                "    left, top = (max(0, round((side - mean) / 2)) for side in image.size)",
                "    box = (left, top, image.width - left, image.height - top)",
                f"    return image.crop(box).resize(({self.resize}, {self.resize}), Image.Resampling.BILINEAR)",
            ]
        )

    def timm(self) -> dict[str, Any]:
        """The preprocessing with timm's names. timm resizes to floor(size / crop_pct), which must equal ``resize``."""
        return {
            "input_size": [self.channels, self.size, self.size],
            "crop_pct": math.floor(self.size / self.resize * 1e4) / 1e4,
            "crop_mode": "center",
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
        }
