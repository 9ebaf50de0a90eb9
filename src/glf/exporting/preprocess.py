"""What has to be done to an image before an exported backbone sees it; travels with every format."""

import math
from dataclasses import dataclass
from typing import Any

from glf.nn.backbone import Backbone


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """The short side to ``resize``, the centre of ``size``, values from 0 to 1, then mean and std."""

    size: int
    resize: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"

    @classmethod
    def of(cls, backbone: Backbone, *, margin: bool) -> "Preprocess":
        """As training stored its images: with a margin of a seventh, or for small images none."""
        return cls(
            size=backbone.image_size,
            resize=round(backbone.image_size * 8 / 7) if margin else backbone.image_size,
            channels=backbone.channels,
            mean=tuple(round(value, 6) for value in backbone.mean.flatten().tolist()),
            std=tuple(round(value, 6) for value in backbone.std.flatten().tolist()),
        )

    def metadata(self) -> dict[str, Any]:
        """The same in names that speak for themselves."""
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
        """In timm's names. It resizes to the floor of size / crop_pct, which should be ``resize``."""
        return {
            "input_size": [self.channels, self.size, self.size],
            "crop_pct": math.floor(self.size / self.resize * 1e4) / 1e4,
            "crop_mode": "center",
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
        }
