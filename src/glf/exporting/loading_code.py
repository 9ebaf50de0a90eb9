"""Lines of Python that build a backbone's body and load its weights without glf, for the model card.

``glf export`` runs the lines before it writes them, and requires that the model they build gives the backbone's
features.
"""

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from glf.data.decode import SMALL
from glf.nn.backbone import Backbone, classifier_name, stem_kind, transformer_sizes

WEIGHTS = "FILE"  # a variable: the path of the weights


class NotPlainError(ValueError):
    """A library cannot build the backbone by name; ``why`` is the message without what to do instead."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}; use --format safetensors, with the code to build it in the model card, or --format onnx"
        )
        self.why = why


class LoadingCode(NamedTuple):
    """Code that defines ``model``, which takes normalised images unless the format normalises them itself.

    The code reads the path of the weights from the variable `WEIGHTS`: a file's name never becomes part of code that
    glf runs.
    """

    code: str
    name: str = ""  # of the model in its library
    arguments: dict[str, Any] | None = None  # of the model, besides its name and number of classes
    folder_code: str = (
        ""  # code that loads the model and its preprocessing from the folder, if the format has such a way
    )

    def text(self, path: Path | str) -> str:
        """The code for people, with the path of the weights in it."""
        return self.code.replace(WEIGHTS, repr(str(path)))

    def run(self, path: Path) -> Any:
        """Run the code and return the model."""
        scope: dict[str, Any] = {WEIGHTS: str(path)}
        exec(self.code, scope)
        return scope["model"]


def timm_code(backbone: Backbone) -> LoadingCode:
    """One call of timm.create_model; ValueError if no such call gives this model."""
    plain, name, arguments, call = _timm_model(backbone)
    _check_same("timm", backbone, plain)
    code = f"import timm\n\nmodel = {call[:-1]}, checkpoint_path={WEIGHTS}).eval()"
    from_folder = (
        "import timm\n\n"
        'model = timm.create_model("local-dir:.", pretrained=True).eval()\n'
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))"
    )
    return LoadingCode(code, name, arguments, from_folder)


def torchvision_code(backbone: Backbone) -> LoadingCode:
    """A torchvision model without its classifier; ValueError if this is not a plain torchvision model."""
    plain, lines = _torchvision_model(backbone)
    _check_same("torchvision", backbone, plain)
    load = [f"model.load_state_dict(torch.load({WEIGHTS}, weights_only=True))", "model.eval()"]
    return LoadingCode("\n".join(["import torch", "import torchvision", "from torch import nn", "", *lines, *load]))


def safetensors_code(backbone: Backbone) -> LoadingCode:
    """The library's model, then the changes for small images (if any), then the weights."""
    imports = ["from safetensors.torch import load_file", "from torch import nn"]
    if backbone.name == "small_resnet":
        imports, lines = [*imports, "from timm.models.resnet import BasicBlock, ResNet"], _small_resnet(backbone)
    elif type(backbone.body).__module__.startswith("torchvision."):
        plain, lines = _torchvision_model(backbone)
        imports, lines = ["import torchvision", *imports], lines + _changes(plain, backbone.body)
    else:
        plain, _, _, call = _timm_model(backbone)
        imports, lines = ["import timm", *imports], [f"model = {call}", *_changes(plain, backbone.body)]
    load = [f"model.load_state_dict(load_file({WEIGHTS}))", "model.eval()"]
    return LoadingCode("\n".join([*imports, "", *lines, *load]))


def onnx_code(_: Backbone) -> LoadingCode:
    """A function around an onnxruntime session; the graph normalises the images itself."""
    lines = [
        "import onnxruntime",
        "",
        f'session = onnxruntime.InferenceSession({WEIGHTS}, providers=["CPUExecutionProvider"])',
        "",
        "",
        "def model(images):  # float32 (batch, channel, height, width), values from 0 to 1, not normalised",
        '    return session.run(None, {"images": images})[0]',
    ]
    return LoadingCode("\n".join(lines))


def _timm_model(backbone: Backbone) -> tuple[nn.Module, str, dict[str, Any], str]:
    """The unmodified timm model, its name and arguments, and the call that creates it."""
    import timm

    name = _plain_name(backbone)
    if not timm.is_model(name):
        raise _not_plain("timm", backbone, f"timm has no model {name}")
    arguments: dict[str, Any] = {} if backbone.channels == 3 else {"in_chans": backbone.channels}
    plain: nn.Module = timm.create_model(name, num_classes=0, **arguments)
    arguments |= transformer_sizes(plain, backbone.image_size, stem_kind(backbone.stem, backbone.image_size))
    plain = timm.create_model(name, num_classes=0, **arguments)
    return plain, name, arguments, f'timm.create_model("{name}", num_classes=0{_as_code(arguments)})'


def _torchvision_model(backbone: Backbone) -> tuple[nn.Module, list[str]]:
    """The unmodified torchvision model without its classifier, and the lines that create it."""
    import torchvision

    name = _plain_name(backbone)
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise _not_plain("torchvision", backbone, f"torchvision has no model {name}")
    arguments = {"image_size": backbone.image_size} if name.startswith("vit_") else {}
    plain = torchvision.models.get_model(name, weights=None, **arguments)
    classifier = classifier_name(plain)
    setattr(plain, classifier, nn.Identity())
    create = f'model = torchvision.models.get_model("{name}", weights=None{_as_code(arguments)})'
    return plain, [create, f"model.{classifier} = nn.Identity()"]


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
    """Lines that turn the unmodified model into ours: layers replaced, or only their strides set."""
    lines = []
    for path, layer in changed.named_modules():
        before = plain.get_submodule(path)
        if next(layer.children(), None) is not None or repr(before) == repr(layer):
            continue
        if isinstance(layer, nn.Conv2d) and isinstance(before, nn.Conv2d) and before.weight.shape == layer.weight.shape:
            lines.append(f'model.get_submodule("{path}").stride = {layer.stride}')
        else:  # the repr of a layer is the code that creates it
            parent, _, name = path.rpartition(".")
            lines.append(f'setattr(model.get_submodule("{parent}"), "{name}", nn.{layer!r})')
    return lines


def _check_same(library: str, backbone: Backbone, plain: nn.Module) -> None:
    """Raise unless the library's model has our convolutions, including strides, which no tensor shape shows."""
    theirs = dict(plain.named_modules())
    for path, layer in backbone.body.named_modules():
        other = theirs.get(path)
        if isinstance(layer, nn.Conv2d) and (
            not isinstance(other, nn.Conv2d) or layer.weight.shape != other.weight.shape or layer.stride != other.stride
        ):
            raise _not_plain(library, backbone, f"its layer {path} differs")
    shapes = {name: tensor.shape for name, tensor in backbone.body.state_dict().items()}
    if shapes != {name: tensor.shape for name, tensor in plain.state_dict().items()}:
        raise _not_plain(library, backbone, "its tensors have other names or shapes")


def _not_plain(library: str, backbone: Backbone, why: str) -> NotPlainError:
    small = stem_kind(backbone.stem, backbone.image_size) != "standard"
    stem = f" (the stem is adapted to images of up to {SMALL} px)" if small else ""
    return NotPlainError(f"{backbone.name} at {backbone.image_size} px is not a plain {library} model: {why}{stem}")


def _plain_name(backbone: Backbone) -> str:
    return backbone.name.rpartition(":")[2]


def _as_code(arguments: dict[str, Any]) -> str:
    return "".join(f", {key}={value!r}" for key, value in arguments.items())
