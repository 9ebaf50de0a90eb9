"""Lines of Python that build a backbone's body without this library, and read its weights.

The lines go into the model card. Before that they are run, and what they build has to give the backbone's features.
"""

from typing import Any, NamedTuple

from torch import nn

from glf.nn.backbone import Backbone, head_of, stem_kind, transformer_sizes

WEIGHTS = "FILE"  # stands in the lines for the path of the weights


class LoadingCode(NamedTuple):
    """Lines that end with ``model``, which takes normalised images."""

    code: str
    name: str = ""  # of the model in its library
    arguments: dict[str, Any] | None = None  # beside the name and the number of classes


def timm_recipe(backbone: Backbone) -> LoadingCode:
    """One call of timm; ValueError where no such call gives this model."""
    plain, name, arguments, call = _of_timm(backbone)
    _check_same("timm", backbone, plain)
    code = f'import timm\n\nmodel = {call[:-1]}, checkpoint_path="{WEIGHTS}").eval()'
    return LoadingCode(code, name, arguments)


def torchvision_recipe(backbone: Backbone) -> LoadingCode:
    """A model of torchvision's that has lost its classifier; ValueError where it is another model."""
    plain, lines = _of_torchvision(backbone)
    _check_same("torchvision", backbone, plain)
    load = [f'model.load_state_dict(torch.load("{WEIGHTS}", weights_only=True))', "model.eval()"]
    return LoadingCode("\n".join(["import torch", "import torchvision", "from torch import nn", "", *lines, *load]))


def safetensors_recipe(backbone: Backbone) -> LoadingCode:
    """The model as its library builds it, then whatever a stem for small images changes, then the weights."""
    imports = ["from safetensors.torch import load_file", "from torch import nn"]
    if backbone.name == "small_resnet":
        imports, lines = [*imports, "from timm.models.resnet import BasicBlock, ResNet"], _small_resnet(backbone)
    elif type(backbone.body).__module__.startswith("torchvision."):
        plain, lines = _of_torchvision(backbone)
        imports, lines = ["import torchvision", *imports], lines + _changes(plain, backbone.body)
    else:
        plain, _, _, call = _of_timm(backbone)
        imports, lines = ["import timm", *imports], [f"model = {call}", *_changes(plain, backbone.body)]
    load = [f'model.load_state_dict(load_file("{WEIGHTS}"))', "model.eval()"]
    return LoadingCode("\n".join([*imports, "", *lines, *load]))


def onnx_recipe(backbone: Backbone) -> LoadingCode:
    """onnxruntime needs no model; what it runs takes images from 0 to 1, and normalises them itself."""
    lines = [
        "import onnxruntime",
        "",
        f'session = onnxruntime.InferenceSession("{WEIGHTS}", providers=["CPUExecutionProvider"])',
        "",
        "",
        "def model(images):  # float32 (batch, channel, height, width), values from 0 to 1, not normalised",
        '    return session.run(None, {"images": images})[0]',
    ]
    return LoadingCode("\n".join(lines))


def _of_timm(backbone: Backbone) -> tuple[nn.Module, str, dict[str, Any], str]:
    """timm's model of that name, its name and arguments, and the call that makes it."""
    import timm

    name = _plain_name(backbone)
    if not timm.is_model(name):
        raise ValueError(_not_plain("timm", backbone, f"timm has no model {name}"))
    arguments: dict[str, Any] = {} if backbone.channels == 3 else {"in_chans": backbone.channels}
    plain: nn.Module = timm.create_model(name, num_classes=0, **arguments)
    arguments |= transformer_sizes(plain, backbone.image_size, stem_kind(backbone.stem, backbone.image_size))
    plain = timm.create_model(name, num_classes=0, **arguments)
    return plain, name, arguments, f'timm.create_model("{name}", num_classes=0{_given(arguments)})'


def _of_torchvision(backbone: Backbone) -> tuple[nn.Module, list[str]]:
    """torchvision's model of that name without its classifier, and the lines that make it."""
    import torchvision

    name = _plain_name(backbone)
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise ValueError(_not_plain("torchvision", backbone, f"torchvision has no model {name}"))
    arguments = {"image_size": backbone.image_size} if name.startswith("vit_") else {}
    plain = torchvision.models.get_model(name, weights=None, **arguments)
    head = head_of(plain)
    setattr(plain, head, nn.Identity())
    make = f'model = torchvision.models.get_model("{name}", weights=None{_given(arguments)})'
    return plain, [make, f"model.{head} = nn.Identity()"]


def _small_resnet(backbone: Backbone) -> list[str]:
    channels = backbone.channels
    lines = [
        f"model = ResNet(BasicBlock, (1, 1, 1, 1), num_classes=0, in_chans={channels}, channels=(32, 64, 128, 256))",
        f"model.conv1 = nn.Conv2d({channels}, 32, 3, stride=2, padding=1, bias=False)",
        "model.bn1 = nn.BatchNorm2d(32)",
        "model.layer1 = nn.Sequential(BasicBlock(32, 32))",
    ]
    tiny = stem_kind(backbone.stem, backbone.image_size) == "tiny"
    return [*lines, "model.maxpool = nn.Identity()"] if tiny else lines


def _changes(plain: nn.Module, changed: nn.Module) -> list[str]:
    """Lines that turn the one model into the other: a layer replaced, or only its stride set."""
    lines = []
    for path, layer in changed.named_modules():
        before = plain.get_submodule(path)
        if next(layer.children(), None) is not None or repr(before) == repr(layer):
            continue
        if isinstance(layer, nn.Conv2d) and isinstance(before, nn.Conv2d) and before.weight.shape == layer.weight.shape:
            lines.append(f'model.get_submodule("{path}").stride = {layer.stride}')
        else:  # how a layer prints is how it is made
            parent, _, name = path.rpartition(".")
            lines.append(f'setattr(model.get_submodule("{parent}"), "{name}", nn.{layer!r})')
    return lines


def _check_same(library: str, backbone: Backbone, plain: nn.Module) -> None:
    """The model that a plain name builds has the convolutions of ours: a stride, which no shape shows, counts too."""
    theirs = dict(plain.named_modules())
    for path, layer in backbone.body.named_modules():
        other = theirs.get(path)
        if isinstance(layer, nn.Conv2d) and (
            not isinstance(other, nn.Conv2d) or layer.weight.shape != other.weight.shape or layer.stride != other.stride
        ):
            raise ValueError(_not_plain(library, backbone, f"its layer {path} is another"))
    shapes = {name: tensor.shape for name, tensor in backbone.body.state_dict().items()}
    if shapes != {name: tensor.shape for name, tensor in plain.state_dict().items()}:
        raise ValueError(_not_plain(library, backbone, "its tensors have other names or shapes"))


def _not_plain(library: str, backbone: Backbone, why: str) -> str:
    small = stem_kind(backbone.stem, backbone.image_size) != "standard"
    stem = " (for images below 113 px the stem is adapted)" if small else ""
    return (
        f"{backbone.name} at {backbone.image_size} px is no plain model of {library}: {why}{stem};"
        " use --format safetensors, whose card has the lines that build it, or --format onnx"
    )


def _plain_name(backbone: Backbone) -> str:
    return backbone.name.rpartition(":")[2]


def _given(arguments: dict[str, Any]) -> str:
    return "".join(f", {key}={value!r}" for key, value in arguments.items())
