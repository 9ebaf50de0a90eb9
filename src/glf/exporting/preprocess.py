"""Preprocessing of input images, stored with every exported backbone."""

import math
from dataclasses import dataclass
from typing import Any

from glf.data.decode import stored_side
from glf.nn.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Resize the short side to ``resize``, crop the central square of ``size``, scale to [0, 1], normalise."""

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
            "resize_short_side": self.resize,
            "centre_crop": self.size,
            "interpolation": f"{self.interpolation}, antialiased",
            "values": "0 to 1",
            "mean": list(self.mean),
            "std": list(self.std),
        }

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
