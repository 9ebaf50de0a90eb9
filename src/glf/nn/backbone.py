"""Backbones by name: any timm or torchvision model without its classifier, and a small ResNet.

A Backbone takes images in [0, 1] and normalises them itself, so that training, probing and export agree on the
normalisation. Its body is the library's own model; exports contain the body. The stem (first layers) depends on the
image size, because the standard stem of a ResNet reduces the resolution four times, too much for small images.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from glf.config.base import nearest
from glf.config.training import Stem
from glf.data.decode import SMALL

TINY = 48  # px; images up to this side get a stem that keeps the resolution
StemKind = Literal["tiny", "small", "standard"]


class Backbone(nn.Module):
    """Normalisation, then the model's features."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        *,
        channels: int = 3,
        image_size: int = 224,
        stem: Stem = "auto",
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.channels, self.image_size, self.stem = name, channels, image_size, stem
        self.register_buffer("mean", _per_channel(mean or (0.5,) * channels), persistent=False)
        self.register_buffer("std", _per_channel(std or (0.25,) * channels), persistent=False)
        self.body = create_body(name, channels, image_size, stem)
        self.width = _width(name, self.body, channels, image_size)

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch feature"]:
        out: Tensor = self.body(self.normalised(x))
        return out

    def with_maps(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch feature"], Float[Tensor, "batch cell map"]]:
        """Return the features, and the feature map that they were pooled from."""
        body: Any = self.body
        if not hasattr(body, "forward_features") or not hasattr(body, "forward_head"):
            raise ValueError(f"{self.name} does not return its feature map: use small_resnet or a timm model")
        maps = body.forward_features(self.normalised(x))
        if maps.ndim != 4:
            raise ValueError(f"{self.name} has tokens instead of a feature map: use a convolutional model")
        return body.forward_head(maps, pre_logits=True), maps.flatten(2).transpose(1, 2)

    @torch.no_grad()
    def map_width(self) -> int:
        """Number of channels of the feature map, measured on a blank image."""
        training = self.training
        blank = torch.zeros(1, self.channels, self.image_size, self.image_size, device=self.mean.device)
        maps = self.eval().with_maps(blank)[1]
        self.train(training)
        return int(maps.shape[2])

    def normalised(self, x: Tensor) -> Tensor:
        return normalised(x, self.mean, self.std)

    def describe(self) -> dict[str, Any]:
        """The arguments of this class that build the same backbone."""
        return {
            "name": self.name,
            "channels": self.channels,
            "image_size": self.image_size,
            "stem": self.stem,
            "mean": tuple(self.mean.flatten().tolist()),
            "std": tuple(self.std.flatten().tolist()),
        }


def normalised(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Images in [0, 1], normalised; grey ones fill all channels of a colour backbone."""
    if x.shape[1] == 1:
        x = x.expand(-1, mean.shape[1], -1, -1)
    return (x - mean) / std


def create_body(name: str, channels: int, image_size: int, stem: Stem) -> nn.Module:
    """Create the model without its classifier, with a first layer for these channels and this image size."""
    kind = stem_kind(stem, image_size)
    if name == "small_resnet":
        return small_resnet(channels, kind)
    library, _, model = name.rpartition(":")
    if library not in ("", "timm", "torchvision"):
        raise ValueError(f"unknown library {library!r} in {name!r}: use timm:<model> or torchvision:<model>")
    if library != "torchvision":
        import timm

        if timm.is_model(model):
            return _timm_model(model, channels, image_size, kind)
    if library != "timm":
        import torchvision

        if model in torchvision.models.list_models(module=torchvision.models):
            return _torchvision_model(model, channels, image_size, kind)
    raise ValueError(_unknown(name, library, model))


def small_resnet(channels: int, kind: StemKind = "tiny") -> nn.Module:
    """timm's ResNet with one basic block per stage, half of ResNet-18's widths and a light stem of stride 2.

    About 1,400 views of 28 px per second (forward and backward) on two cores; ResNet-18 reaches 30.
    """
    from timm.models.resnet import BasicBlock, ResNet

    block: Any = BasicBlock
    model: nn.Module = ResNet(block, (1, 1, 1, 1), num_classes=0, in_chans=channels, channels=(32, 64, 128, 256))
    model.conv1 = nn.Conv2d(channels, 32, 3, stride=2, padding=1, bias=False)
    model.bn1 = nn.BatchNorm2d(32)
    model.layer1 = nn.Sequential(BasicBlock(32, 32))
    if kind == "tiny":
        model.maxpool = nn.Identity()
    return model


def _timm_model(name: str, channels: int, image_size: int, kind: StemKind) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, num_classes=0, in_chans=channels)
    sizes = transformer_sizes(model, image_size, kind)
    if sizes:
        model = timm.create_model(name, num_classes=0, in_chans=channels, **sizes)
    return model if sizes else _adapt_stem(model, kind)


def transformer_sizes(model: nn.Module, image_size: int, kind: StemKind) -> dict[str, int]:
    """Arguments for a timm vision transformer: its image size, and smaller patches for small images."""
    if not hasattr(getattr(model, "patch_embed", None), "grid_size"):
        return {}
    patches = {} if kind == "standard" else {"patch_size": max(2, image_size // 8)}
    return {"img_size": image_size} | patches


def _torchvision_model(name: str, channels: int, image_size: int, kind: StemKind) -> nn.Module:
    import torchvision

    transformer = name.startswith("vit_")
    extra: dict[str, Any] = {"image_size": image_size} if transformer else {}
    if transformer and kind != "standard":
        raise ValueError(f"torchvision:{name} has fixed patches: for {image_size} px use a timm model")
    model = without_classifier(torchvision.models.get_model(name, weights=None, **extra))
    return _adapt_stem(_with_channels(model, channels), kind)


def without_classifier(model: nn.Module) -> nn.Module:
    """Remove the classifier of a torchvision model."""
    head = classifier_name(model)
    if head:
        setattr(model, head, nn.Identity())
    return model


def classifier_name(model: nn.Module) -> str:
    """Attribute name of a torchvision model's classifier; empty if it has none."""
    return next((name for name in ("fc", "classifier", "heads", "head") if hasattr(model, name)), "")


def _adapt_stem(model: nn.Module, kind: StemKind) -> nn.Module:
    if hasattr(model, "conv1") and hasattr(model, "maxpool"):
        return _resnet_stem(model, kind)
    if kind != "standard":
        first = next((m for m in model.modules() if isinstance(m, nn.Conv2d) and max(m.stride) > 1), None)
        if first is not None:  # a 4x4 patch stem keeps its kernel at stride 2: the feature map stays large enough
            first.stride = (1, 1) if first.kernel_size[0] < 4 else (2, 2)
    return model


def _resnet_stem(model: nn.Module, kind: StemKind) -> nn.Module:
    """tiny: 3x3 convolution of stride 1, no pooling. small: the same with pooling. standard: unchanged."""
    if kind == "standard":
        return model
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    if model.conv1 is first:  # else a deep stem (some timm ResNets), which is 3x3 already: only its stride changes
        conv = nn.Conv2d(first.in_channels, first.out_channels, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        model.conv1 = conv
    else:
        first.stride = (1, 1)
    if kind == "tiny":
        model.maxpool = nn.Identity()
    return model


def _with_channels(model: nn.Module, channels: int) -> nn.Module:
    """Replace the first convolution by one with ``channels`` input channels; torchvision's models have three."""
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d):
            if layer.in_channels != channels:
                parent = model.get_submodule(path.rpartition(".")[0])
                new = nn.Conv2d(
                    channels,
                    layer.out_channels,
                    layer.kernel_size,  # type: ignore[arg-type]
                    layer.stride,  # type: ignore[arg-type]
                    layer.padding,  # type: ignore[arg-type]
                    bias=layer.bias is not None,
                )
                setattr(parent, path.rpartition(".")[2], new)
            return model
    return model


def stem_kind(stem: Stem, image_size: int) -> StemKind:
    """The stem for an image size: tiny halves the resolution never, small once, standard twice."""
    if stem != "auto":
        return "tiny" if stem == "small" else "standard"
    return "tiny" if image_size <= TINY else "small" if image_size <= SMALL else "standard"


@torch.no_grad()
def _width(name: str, body: nn.Module, channels: int, image_size: int) -> int:
    """Number of features, measured on a blank image: the only way that works for every model."""
    training = body.training
    try:
        out = body.eval()(torch.zeros(1, channels, image_size, image_size))
    except (RuntimeError, AssertionError) as error:  # each model refuses a size in its own way
        raise ValueError(
            f"{name} cannot take images of {image_size} px ({error}): try --stem standard, or a larger --image-size"
        ) from error
    body.train(training)
    if not isinstance(out, Tensor) or out.ndim != 2:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"{name} returns features of shape {shape}, not (batch, feature)")
    return int(out.shape[1])


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values).view(1, -1, 1, 1)


def _unknown(name: str, library: str, model: str) -> str:
    import timm
    import torchvision

    known = ["small_resnet"] if not library else []
    known += timm.list_models() if library != "torchvision" else []
    known += torchvision.models.list_models(module=torchvision.models) if library != "timm" else []
    return f"unknown backbone {name!r}{nearest(model, known)} (small_resnet, or a model in timm.list_models())"
